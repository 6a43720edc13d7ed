/* elf_file.c - checks header, segments and the dynamic section of a plugin, mapped as a whole, against the
 * size of its file. */
#include "plugin/elf_file.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "plugin/hook.h"

/* The header of what this code lies in, which was built for this machine. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

typedef struct elf_file {
    const char *path;
    const eni_elf_words *words;
    uint64_t size;
    union { /* all of it */
        const uint8_t *bytes;
        const ElfW(Ehdr) * header;
    } at;
    const ElfW(Phdr) * segment; /* (e_phnum) */
} elf_file;

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

/* Says what the file is in place of a shared object for this machine. */
static en_status check_header(const elf_file *f)
{
    const ElfW(Ehdr) *header = f->at.header, *own = &__ehdr_start;
    const unsigned char *id = f->at.bytes; /* zeros behind a file that is shorter */
    if (memcmp(id, ELFMAG, SELFMAG) != 0)
        return eni_fail(EN_EFORMAT, f->words->subsystem,
                        "%s is not a shared object (it starts with %02x %02x %02x %02x, not 7f 45 4c 46); %s",
                        f->path, id[0], id[1], id[2], id[3], f->words->build);
    if (f->size < sizeof *header) return cut_off(f, "the end of its header");
    if (id[EI_CLASS] != own->e_ident[EI_CLASS] || id[EI_DATA] != own->e_ident[EI_DATA] ||
        header->e_machine != own->e_machine)
        return eni_fail(
            EN_EVERSION, f->words->subsystem,
            "%s was built for another machine (ELF class %u, byte order %u, machine %u; this program: "
            "%u, %u, %u); on this one, %s",
            f->path, id[EI_CLASS], id[EI_DATA], header->e_machine, own->e_ident[EI_CLASS],
            own->e_ident[EI_DATA], own->e_machine, f->words->build);
    if (header->e_type == ET_DYN) return EN_OK;
    return eni_fail(EN_EFORMAT, f->words->subsystem, "%s is an ELF %s, not a shared object; %s", f->path,
                    header->e_type == ET_REL    ? "object file"
                    : header->e_type == ET_EXEC ? "executable"
                                                : "file of another type",
                    f->words->build);
}

/* ---- segments: what the loader maps ------------------------------------------------------------------- */

/* The loader does not need sections; but linkers put their table last, so zeros there are those of a copy
 * that was broken off in a file whose room was reserved. */
static en_status check_tables(elf_file *f)
{
    ElfW(Shdr) last;
    const ElfW(Ehdr) *header = f->at.header;
    const uint64_t sections = (uint64_t)header->e_shnum * header->e_shentsize;
    if (header->e_phentsize != sizeof *f->segment || header->e_phnum == 0)
        return eni_fail(EN_EFORMAT, f->words->subsystem, "%s has no segments to load; %s", f->path,
                        f->words->build);
    if (!lies_inside(header->e_shoff, sections, f->size)) return cut_off(f, "its table of sections");
    if (!lies_inside(header->e_phoff, header->e_phnum * sizeof *f->segment, f->size))
        return cut_off(f, "its table of segments");
    if (header->e_phoff % sizeof(ElfW(Addr)) != 0) return damaged(f, "its table of segments is not aligned");
    f->segment = (const void *)(f->at.bytes + header->e_phoff);
    if (header->e_shnum < 2 || header->e_shentsize != sizeof last) return EN_OK;
    memcpy(&last, f->at.bytes + header->e_shoff + sections - sizeof last, sizeof last);
    return last.sh_type != SHT_NULL ? EN_OK : damaged(f, "its table of sections ends in zeros");
}

/* The loader maps each where it says, over whatever is there: so they must go upwards. */
static en_status check_segments(const elf_file *f)
{
    uint64_t end = 0;
    for (int i = 0; i < f->at.header->e_phnum; i++) {
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
    for (int i = 0; i < f->at.header->e_phnum; i++) {
        const ElfW(Phdr) *s = &f->segment[i];
        if (s->p_type == PT_LOAD && (s->p_flags & rights) == rights && address >= s->p_vaddr &&
            lies_inside(address - s->p_vaddr, bytes, s->p_filesz))
            return s;
    }
    return NULL;
}

/* ---- the dynamic section: what the loader reads of that ------------------------------------------------ */

static en_status check_dynamic(const elf_file *f)
{
    uint64_t symbols = 0, names = 0, names_bytes = 0, hash = 0;
    const ElfW(Phdr) *dynamic = NULL, *home;
    ElfW(Dyn) entry = {.d_tag = DT_DEBUG};
    for (int i = 0; i < f->at.header->e_phnum; i++)
        if (f->segment[i].p_type == PT_DYNAMIC) dynamic = &f->segment[i];
    if (dynamic == NULL) return damaged(f, "it has no dynamic section");
    /* the loader writes there, unless the linker has said that it may not (-z rodynamic) */
    home = find_loaded(f, dynamic->p_vaddr, dynamic->p_filesz, PF_R | (dynamic->p_flags & PF_W));
    if (home == NULL || dynamic->p_offset - home->p_offset != dynamic->p_vaddr - home->p_vaddr)
        return damaged(f, "its dynamic section is not where its segments are");
    for (uint64_t at = 0; at + sizeof entry <= dynamic->p_filesz && entry.d_tag != DT_NULL;
         at += sizeof entry) {
        memcpy(&entry, f->at.bytes + dynamic->p_offset + at, sizeof entry);
        switch (entry.d_tag) {
        case DT_SYMTAB: symbols = entry.d_un.d_ptr; break;
        case DT_STRTAB: names = entry.d_un.d_ptr; break;
        case DT_STRSZ: names_bytes = entry.d_un.d_val; break;
        case DT_HASH:
        case DT_GNU_HASH: hash = entry.d_un.d_ptr; break;
        default: break;
        }
    }
    if (entry.d_tag != DT_NULL) return damaged(f, "its dynamic section has no end");
    if (find_loaded(f, symbols, sizeof(ElfW(Sym)), PF_R) == NULL || names_bytes == 0 ||
        find_loaded(f, names, names_bytes, PF_R) == NULL ||
        find_loaded(f, hash, 4 * sizeof(uint32_t), PF_R) == NULL)
        return damaged(f, "its table of symbols is not where its segments are");
    return EN_OK;
}

/* ------------------------------------------------------------------------------------------------------- */

static en_status check(elf_file *f, int fd)
{
    if (f->size == 0)
        return eni_fail(EN_EFORMAT, f->words->subsystem, "%s is empty; %s", f->path, f->words->build);
    void *bytes = eni_alloc(f->size); /* read, not mapped: somebody may cut it off meanwhile */
    if (bytes == NULL || !eni_file_read_at(fd, bytes, f->size, 0)) {
        eni_error(f->words->subsystem, "cannot read %s %s: %s; %s", f->words->what, f->path,
                  bytes == NULL ? "no memory" : "it is shorter than it was", f->words->place);
        eni_free(bytes);
        return EN_EINVAL;
    }
    f->at.bytes = bytes;
    en_status st = check_header(f);
    if (st == EN_OK) st = check_tables(f);
    if (st == EN_OK) st = check_segments(f);
    if (st == EN_OK) st = check_dynamic(f);
    eni_free(bytes);
    return st;
}

en_status eni_elf_check(const char *path, const eni_elf_words *words)
{
    struct stat info;
    elf_file f = {.path = path, .words = words};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0) {
        const int cause = errno;
        if (fd >= 0) close(fd);
        return eni_fail(cause == ENOENT || cause == ENOTDIR ? EN_ENOENT : EN_EINVAL, words->subsystem,
                        "cannot open %s %s: %s; %s", words->what, path, strerror(cause), words->place);
    }
    en_status st = EN_EINVAL;
    f.size = (uint64_t)info.st_size;
    if (S_ISREG(info.st_mode))
        st = check(&f, fd);
    else
        eni_error(words->subsystem, "%s %s is %s; %s", words->what, path,
                  S_ISDIR(info.st_mode) ? "a folder" : "no regular file", words->place);
    close(fd);
    return st;
}

en_status eni_elf_open(const char *path, const eni_elf_words *words, const char *symbol,
                       const char *declaration, void **symbol_out)
{
    char full[PATH_MAX];
    /* Without a slash dlopen would search the library path. */
    if ((size_t)snprintf(full, sizeof full, "%s%s", strchr(path, '/') != NULL ? "" : "./", path) >=
        sizeof full)
        return eni_fail(EN_EINVAL, words->subsystem, "the path of %s %.40s.. is longer than %d bytes",
                        words->what, path, PATH_MAX);
    EN_TRY(eni_elf_check(full, words));
    eni_hook_enter_named("the loading", full); /* which runs constructors */
    void *file = dlopen(full, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    eni_hook_leave_named();
    if (file == NULL)
        return eni_fail(EN_EFORMAT, words->subsystem,
                        "cannot load %s %s: %s; link what it needs into it, or build it again", words->what,
                        full, dlerror());
    *symbol_out = dlsym(file, symbol);
    if (*symbol_out != NULL) return EN_OK;
    return eni_fail(EN_EFORMAT, words->subsystem, "%s has no symbol %s; end it with: EN_EXPORT %s", full,
                    symbol, declaration);
}
