/* elf_file.c - checks a plugin's header, segments and dynamic section against the size of its file. dlopen trusts
 * them: a truncated or damaged file ends the process with SIGBUS or SIGSEGV. The crash guard would name it (hook.h),
 * but a library such as libentrain has no guard. */
#include "plugin/elf_file.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"

/* The ELF header of the object that this code is in, which was built for this machine. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

typedef struct elf_file {
    uint64_t size;
    union { /* the whole file, zero-padded to a multiple of 64 bytes */
        const uint8_t *bytes;
        const ElfW(Ehdr) * header;
    } at;
    const ElfW(Phdr) * segment; /* (e_phnum) */
} elf_file;

static bool lies_inside(uint64_t offset, uint64_t bytes, uint64_t size)
{
    return offset <= size && bytes <= size - offset;
}

/* The following functions return the error, or NULL. */

/* The loader does not need sections, but linkers put their table last: zeros there mean a copy that was interrupted
 * after the file's space was reserved. */
static const char *check_tables(elf_file *f)
{
    ElfW(Shdr) last;
    const ElfW(Ehdr) *header = f->at.header;
    if (f->size < sizeof *header) return "truncated: the end of the header is missing";
    const uint64_t sections = (uint64_t)header->e_shnum * header->e_shentsize;
    if (header->e_phentsize != sizeof *f->segment || header->e_phnum == 0)
        return "damaged: it has no loadable segments";
    if (!lies_inside(header->e_shoff, sections, f->size)) return "truncated: the section table is missing";
    if (!lies_inside(header->e_phoff, header->e_phnum * sizeof *f->segment, f->size))
        return "truncated: the segment table is missing";
    if (header->e_phoff % sizeof(ElfW(Addr)) != 0) return "damaged: the segment table is not aligned";
    f->segment = (const void *)(f->at.bytes + header->e_phoff);
    if (header->e_shnum < 2 || header->e_shentsize != sizeof last) return NULL;
    memcpy(&last, f->at.bytes + header->e_shoff + sections - sizeof last, sizeof last);
    return last.sh_type != SHT_NULL ? NULL : "damaged: the section table ends in zeros";
}

/* The loader maps each segment at its address, over whatever is there: so addresses must rise. */
static const char *check_segments(const elf_file *f)
{
    uint64_t end = 0;
    for (int i = 0; i < f->at.header->e_phnum; i++) {
        const ElfW(Phdr) *s = &f->segment[i];
        if (!lies_inside(s->p_offset, s->p_filesz, f->size))
            return "truncated: the end of a segment is missing";
        if (s->p_type != PT_LOAD) continue;
        if (s->p_filesz > s->p_memsz || s->p_memsz > UINT64_MAX / 2 || s->p_vaddr > UINT64_MAX / 2)
            return "damaged: a segment does not fit into memory";
        if (s->p_vaddr < end) return "damaged: segments overlap";
        end = s->p_vaddr + s->p_memsz;
    }
    return NULL;
}

/* The segment that loads the bytes at [address, address + bytes) from the file, with these permissions; or NULL. */
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

static const char *check_dynamic(const elf_file *f)
{
    uint64_t symbols = 0, names = 0, names_bytes = 0, hash = 0;
    const ElfW(Phdr) *dynamic = NULL, *home;
    ElfW(Dyn) entry = {.d_tag = DT_DEBUG};
    for (int i = 0; i < f->at.header->e_phnum; i++)
        if (f->segment[i].p_type == PT_DYNAMIC) dynamic = &f->segment[i];
    if (dynamic == NULL) return "damaged: it has no dynamic section";
    /* the loader writes there, unless it was linked read-only (-z rodynamic) */
    home = find_loaded(f, dynamic->p_vaddr, dynamic->p_filesz, PF_R | (dynamic->p_flags & PF_W));
    if (home == NULL || dynamic->p_offset - home->p_offset != dynamic->p_vaddr - home->p_vaddr)
        return "damaged: its dynamic section lies outside its segments";
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
    if (entry.d_tag != DT_NULL) return "damaged: its dynamic section is not terminated";
    if (find_loaded(f, symbols, sizeof(ElfW(Sym)), PF_R) == NULL || names_bytes == 0 ||
        find_loaded(f, names, names_bytes, PF_R) == NULL ||
        find_loaded(f, hash, 4 * sizeof(uint32_t), PF_R) == NULL)
        return "damaged: its symbol table lies outside its segments";
    return NULL;
}

static en_status check(const eni_plugin_kind *kind, const char *path, elf_file *f)
{
    const ElfW(Ehdr) *header = f->at.header, *own = &__ehdr_start;
    const unsigned char *id = f->at.bytes;
    if (f->size == 0) return eni_fail(EN_EFORMAT, "plugin", "%s is empty; %s", path, kind->remedy);
    if (memcmp(id, ELFMAG, SELFMAG) != 0)
        return eni_fail(EN_EFORMAT, "plugin",
                        "%s is not a shared object (it starts with %02x %02x %02x %02x, not 7f 45 4c 46); %s",
                        path, id[0], id[1], id[2], id[3], kind->remedy);
    const bool is_whole = f->size >= sizeof *header;
    if (is_whole && (id[EI_CLASS] != own->e_ident[EI_CLASS] || id[EI_DATA] != own->e_ident[EI_DATA] ||
                     header->e_machine != own->e_machine))
        return eni_fail(EN_EVERSION, "plugin",
                        "%s was built for another machine (ELF class %u, byte order %u, machine %u; this "
                        "program: %u, %u, %u); %s",
                        path, id[EI_CLASS], id[EI_DATA], header->e_machine, own->e_ident[EI_CLASS],
                        own->e_ident[EI_DATA], own->e_machine, kind->remedy);
    if (is_whole && header->e_type != ET_DYN)
        return eni_fail(EN_EFORMAT, "plugin", "%s is an ELF %s, not a shared object; %s", path,
                        header->e_type == ET_REL    ? "object file"
                        : header->e_type == ET_EXEC ? "executable"
                                                    : "file of another type",
                        kind->remedy);
    const char *wrong = check_tables(f);
    if (wrong == NULL) wrong = check_segments(f);
    if (wrong == NULL) wrong = check_dynamic(f);
    if (wrong == NULL) return EN_OK;
    return eni_fail(EN_EFORMAT, "plugin", "%s is %s (the file has %llu bytes); build or copy it again", path,
                    wrong, (unsigned long long)f->size);
}

en_status eni_elf_check(const eni_plugin_kind *kind, const char *path)
{
    struct stat info;
    elf_file f = {0};
    void *bytes = NULL;
    const char *wrong = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool is_absent = fd < 0 && (errno == ENOENT || errno == ENOTDIR);
    if (fd < 0 || fstat(fd, &info) != 0)
        wrong = strerror(errno);
    else if (!S_ISREG(info.st_mode))
        wrong = S_ISDIR(info.st_mode) ? "it is a folder" : "it is not a regular file";
    /* read, not mapped: it may be truncated meanwhile */
    else if ((bytes = eni_alloc(f.size = (uint64_t)info.st_size)) == NULL ||
             !eni_file_read_at(fd, bytes, f.size, 0))
        wrong = bytes == NULL ? "out of memory" : strerror(errno);
    if (fd >= 0) close(fd);
    f.at.bytes = bytes;
    const en_status st = wrong == NULL
                             ? check(kind, path, &f)
                             : eni_fail(is_absent ? EN_ENOENT : EN_EINVAL, "plugin",
                                        "cannot open %s %s: %s; %s", kind->what, path, wrong, kind->remedy);
    eni_free(bytes);
    return st;
}
