/* elf_file.c - checks header, segments and the dynamic section of a plugin against the size of its file. */
#include "core/elf_file.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/try.h"

enum {
    SEGMENTS_MAX = 64, /* linkers make about ten */
    OWN_CLASS = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32
};
static const unsigned char own_order = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;

typedef struct elf_file {
    const char *path;
    const eni_elf_words *words;
    int fd;
    uint64_t size;
    union {
        ElfW(Ehdr) header;
        unsigned char magic[4];
    } start;
    ElfW(Phdr) segment[SEGMENTS_MAX];
    int nsegments;
} elf_file;

/* Bytes [offset, offset + bytes) of the file; 0 if they are not there. */
static int read_at(int fd, void *into, uint64_t bytes, uint64_t offset)
{
    for (uint64_t done = 0; done < bytes;) {
        const ssize_t n = pread(fd, (char *)into + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        done += (uint64_t)n;
    }
    return 1;
}

static int lies_inside(uint64_t offset, uint64_t bytes, uint64_t size)
{
    return offset <= size && bytes <= size - offset;
}

static en_status cut_off(const elf_file *f, const char *what)
{
    return eni_fail(EN_EFORMAT, f->words->subsystem,
                    "%s is cut off: %s lies behind its last byte, %llu; build or copy it again", f->path,
                    what, (unsigned long long)f->size);
}

static en_status damaged(const elf_file *f, const char *what)
{
    return eni_fail(EN_EFORMAT, f->words->subsystem, "%s is damaged: %s; build or copy it again", f->path,
                    what);
}

/* ---- the header -------------------------------------------------------------------------------------- */

/* Says what the file is in place of a shared object. */
static en_status check_magic(const elf_file *f)
{
    const unsigned char *magic = f->start.magic;
    if (f->size == 0)
        return eni_fail(EN_EFORMAT, f->words->subsystem, "%s is empty; %s", f->path, f->words->build);
    if (memcmp(magic, ELFMAG, SELFMAG) == 0) return EN_OK;
    return eni_fail(EN_EFORMAT, f->words->subsystem,
                    "%s is not a shared object (it starts with %02x %02x %02x %02x, not 7f 45 4c 46); %s",
                    f->path, magic[0], magic[1], magic[2], magic[3], f->words->build);
}

/* The machine is that of our own executable. */
static en_status check_kind(const elf_file *f)
{
    ElfW(Ehdr) own;
    const ElfW(Ehdr) *header = &f->start.header;
    const unsigned char *id = header->e_ident;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const int is_known = fd >= 0 && read_at(fd, &own, sizeof own, 0);
    if (fd >= 0) close(fd);
    if (id[EI_CLASS] != OWN_CLASS || id[EI_DATA] != own_order ||
        (is_known && header->e_machine != own.e_machine))
        return eni_fail(
            EN_EVERSION, f->words->subsystem,
            "%s was built for another machine (ELF class %u, byte order %u, machine %u; this program: "
            "%u, %u, %u); on this one, %s",
            f->path, id[EI_CLASS], id[EI_DATA], header->e_machine, (unsigned)OWN_CLASS, own_order,
            is_known ? own.e_machine : 0u, f->words->build);
    if (header->e_type == ET_DYN) return EN_OK;
    return eni_fail(EN_EFORMAT, f->words->subsystem, "%s is an ELF %s, not a shared object; %s", f->path,
                    header->e_type == ET_REL    ? "object file"
                    : header->e_type == ET_EXEC ? "executable"
                                                : "file of another type",
                    f->words->build);
}

static en_status check_header(elf_file *f)
{
    const uint64_t there = f->size < sizeof f->start.header ? f->size : sizeof f->start.header;
    if (!read_at(f->fd, &f->start, there, 0))
        return eni_fail(EN_EINVAL, f->words->subsystem, "cannot read %s %s: %s; %s", f->words->what, f->path,
                        strerror(errno), f->words->place);
    EN_TRY(check_magic(f));
    if (there < sizeof f->start.header) return cut_off(f, "the end of its header");
    return check_kind(f);
}

/* ---- segments: what the loader maps ------------------------------------------------------------------- */

static en_status read_tables(elf_file *f)
{
    const ElfW(Ehdr) *header = &f->start.header;
    const uint64_t bytes = (uint64_t)header->e_phnum * sizeof *f->segment;
    if (header->e_phentsize != sizeof *f->segment || header->e_phnum == 0)
        return eni_fail(EN_EFORMAT, f->words->subsystem, "%s has no segments to load; %s", f->path,
                        f->words->build);
    if (header->e_phnum > SEGMENTS_MAX) return damaged(f, "it claims more segments than a plugin has");
    if (!lies_inside(header->e_shoff, (uint64_t)header->e_shnum * header->e_shentsize, f->size))
        return cut_off(f, "its table of sections");
    if (!lies_inside(header->e_phoff, bytes, f->size) || !read_at(f->fd, f->segment, bytes, header->e_phoff))
        return cut_off(f, "its table of segments");
    f->nsegments = header->e_phnum;
    return EN_OK;
}

/* The loader does not need sections; but linkers put their table last, so zeros there are those of a copy
 * that was broken off in a file whose room was reserved. */
static en_status check_last_section(const elf_file *f)
{
    ElfW(Shdr) last;
    const ElfW(Ehdr) *header = &f->start.header;
    if (header->e_shnum < 2 || header->e_shentsize != sizeof last) return EN_OK;
    if (!read_at(f->fd, &last, sizeof last, header->e_shoff + (header->e_shnum - 1) * sizeof last))
        return cut_off(f, "its last section");
    return last.sh_type != SHT_NULL ? EN_OK : damaged(f, "its table of sections ends in zeros");
}

/* The loader maps each where it says, over whatever is there: so they must go upwards. */
static en_status check_segments(const elf_file *f)
{
    uint64_t end = 0;
    for (int i = 0; i < f->nsegments; i++) {
        const ElfW(Phdr) *s = &f->segment[i];
        if (!lies_inside(s->p_offset, s->p_filesz, f->size)) return cut_off(f, "the end of a segment");
        if (s->p_type != PT_LOAD) continue;
        if (s->p_filesz > s->p_memsz || s->p_memsz > UINT64_MAX / 2 || s->p_vaddr > UINT64_MAX / 2)
            return damaged(f, "a segment does not fit into memory");
        if (s->p_vaddr < end) return damaged(f, "its segments overlap");
        end = s->p_vaddr + s->p_memsz;
    }
    return EN_OK;
}

/* The segment that brings the bytes at [address, address + bytes) from the file, with these rights; or NULL.
 */
static const ElfW(Phdr) * find_loaded(const elf_file *f, uint64_t address, uint64_t bytes, uint32_t rights)
{
    for (int i = 0; i < f->nsegments; i++) {
        const ElfW(Phdr) *s = &f->segment[i];
        if (s->p_type == PT_LOAD && (s->p_flags & rights) == rights && address >= s->p_vaddr &&
            lies_inside(address - s->p_vaddr, bytes, s->p_filesz))
            return s;
    }
    return NULL;
}

/* ---- the dynamic section: what the loader reads of that ------------------------------------------------ */

typedef struct tables {
    uint64_t symbols, names, names_bytes, hash; /* 0: none */
    int is_ended;
} tables;

static en_status read_dynamic(const elf_file *f, const ElfW(Phdr) * dynamic, tables *t)
{
    ElfW(Dyn) entry;
    *t = (tables){0};
    for (uint64_t at = 0; at + sizeof entry <= dynamic->p_filesz && !t->is_ended; at += sizeof entry) {
        if (!read_at(f->fd, &entry, sizeof entry, dynamic->p_offset + at))
            return cut_off(f, "its dynamic section");
        switch (entry.d_tag) {
        case DT_NULL: t->is_ended = 1; break;
        case DT_SYMTAB: t->symbols = entry.d_un.d_ptr; break;
        case DT_STRTAB: t->names = entry.d_un.d_ptr; break;
        case DT_STRSZ: t->names_bytes = entry.d_un.d_val; break;
        case DT_HASH:
        case DT_GNU_HASH: t->hash = entry.d_un.d_ptr; break;
        default: break;
        }
    }
    return EN_OK;
}

static en_status check_dynamic(const elf_file *f)
{
    tables t;
    const ElfW(Phdr) *dynamic = NULL, *home;
    for (int i = 0; i < f->nsegments; i++)
        if (f->segment[i].p_type == PT_DYNAMIC) dynamic = &f->segment[i];
    if (dynamic == NULL) return damaged(f, "it has no dynamic section");
    /* the loader writes there, unless the linker has said that it may not (-z rodynamic) */
    home = find_loaded(f, dynamic->p_vaddr, dynamic->p_filesz, PF_R | (dynamic->p_flags & PF_W));
    if (home == NULL || dynamic->p_offset - home->p_offset != dynamic->p_vaddr - home->p_vaddr)
        return damaged(f, "its dynamic section is not where its segments are");
    EN_TRY(read_dynamic(f, dynamic, &t));
    if (!t.is_ended) return damaged(f, "its dynamic section has no end");
    if (find_loaded(f, t.symbols, sizeof(ElfW(Sym)), PF_R) == NULL ||
        find_loaded(f, t.names, t.names_bytes, PF_R) == NULL || t.names_bytes == 0 ||
        find_loaded(f, t.hash, 4 * sizeof(uint32_t), PF_R) == NULL)
        return damaged(f, "its table of symbols is not where its segments are");
    return EN_OK;
}

/* ------------------------------------------------------------------------------------------------------- */

static en_status check(elf_file *f)
{
    EN_TRY(check_header(f));
    EN_TRY(read_tables(f));
    EN_TRY(check_last_section(f));
    EN_TRY(check_segments(f));
    return check_dynamic(f);
}

en_status eni_elf_check(const char *path, const eni_elf_words *words)
{
    struct stat info;
    elf_file f = {.path = path, .words = words};
    f.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f.fd < 0 || fstat(f.fd, &info) != 0) {
        const int cause = errno;
        if (f.fd >= 0) close(f.fd);
        return eni_fail(cause == ENOENT || cause == ENOTDIR ? EN_ENOENT : EN_EINVAL, words->subsystem,
                        "cannot open %s %s: %s; %s", words->what, path, strerror(cause), words->place);
    }
    en_status st = EN_EINVAL;
    f.size = (uint64_t)info.st_size;
    if (S_ISREG(info.st_mode))
        st = check(&f);
    else
        eni_error(words->subsystem, "%s %s is %s; %s", words->what, path,
                  S_ISDIR(info.st_mode) ? "a folder" : "no regular file", words->place);
    close(f.fd);
    return st;
}
