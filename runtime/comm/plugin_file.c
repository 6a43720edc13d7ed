/* plugin_file.c - see plugin_file.h. */
#include "runtime/comm/plugin_file.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/log.h"
#include "runtime/core/try.h"

#define BUILD_LINE "cc -shared -fPIC -I<include> mine.c -o mine.so"

enum { OWN_CLASS = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32 };
static const unsigned char own_order = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;

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

static en_status cut_off(const char *path, const char *what, uint64_t size)
{
    eni_error("plugin", "%s is cut off: %s lies behind its last byte, %llu; build or copy it again", path,
              what, (unsigned long long)size);
    return EN_EFORMAT;
}

static int lies_inside(uint64_t offset, uint64_t bytes, uint64_t size)
{
    return offset <= size && bytes <= size - offset;
}

/* Says what the file is in place of a shared object. */
static en_status check_magic(const char *path, const unsigned char *magic, uint64_t size)
{
    if (size == 0) {
        eni_error("plugin", "%s is empty; build it: %s", path, BUILD_LINE);
        return EN_EFORMAT;
    }
    if (memcmp(magic, ELFMAG, SELFMAG) == 0) return EN_OK;
    eni_error(
        "plugin",
        "%s is not a shared object (it starts with %02x %02x %02x %02x, not 7f 45 4c 46); build one: %s",
        path, magic[0], magic[1], magic[2], magic[3], BUILD_LINE);
    return EN_EFORMAT;
}

/* The machine is that of our own executable. */
static en_status check_kind(const char *path, const ElfW(Ehdr) * header)
{
    ElfW(Ehdr) own;
    const unsigned char *id = header->e_ident;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const int is_known = fd >= 0 && read_at(fd, &own, sizeof own, 0);
    if (fd >= 0) close(fd);
    if (id[EI_CLASS] != OWN_CLASS || id[EI_DATA] != own_order ||
        (is_known && header->e_machine != own.e_machine)) {
        eni_error("plugin",
                  "%s was built for another machine (ELF class %u, byte order %u, machine %u; this program: "
                  "%u, %u, %u); build it on this one: %s",
                  path, id[EI_CLASS], id[EI_DATA], header->e_machine, (unsigned)OWN_CLASS, own_order,
                  is_known ? own.e_machine : 0u, BUILD_LINE);
        return EN_EVERSION;
    }
    if (header->e_type == ET_DYN) return EN_OK;
    eni_error("plugin", "%s is an ELF %s, not a shared object; build one: %s", path,
              header->e_type == ET_REL    ? "object file"
              : header->e_type == ET_EXEC ? "executable"
                                          : "file of another type",
              BUILD_LINE);
    return EN_EFORMAT;
}

static en_status check_tables(const char *path, int fd, const ElfW(Ehdr) * header, uint64_t size)
{
    const uint64_t sections = (uint64_t)header->e_shnum * header->e_shentsize;
    if (header->e_phentsize != sizeof(ElfW(Phdr)) || header->e_phnum == 0 || header->e_phnum == PN_XNUM) {
        eni_error("plugin", "%s has no segments to load; build it: %s", path, BUILD_LINE);
        return EN_EFORMAT;
    }
    if (!lies_inside(header->e_shoff, sections, size)) return cut_off(path, "its table of sections", size);
    for (uint32_t i = 0; i < header->e_phnum; i++) {
        ElfW(Phdr) segment;
        const uint64_t offset = header->e_phoff + (uint64_t)i * sizeof segment;
        if (!lies_inside(offset, sizeof segment, size) || !read_at(fd, &segment, sizeof segment, offset))
            return cut_off(path, "its table of segments", size);
        if (!lies_inside(segment.p_offset, segment.p_filesz, size))
            return cut_off(path, "the end of a segment", size);
    }
    return EN_OK;
}

static en_status check_elf(const char *path, int fd, uint64_t size)
{
    union {
        ElfW(Ehdr) header;
        unsigned char magic[4];
    } start = {.magic = {0}};
    const uint64_t there = size < sizeof start.header ? size : sizeof start.header;
    if (!read_at(fd, &start, there, 0)) {
        eni_error("plugin", "cannot read strategy %s: %s; give the path of a shared object", path,
                  strerror(errno));
        return EN_EINVAL;
    }
    EN_TRY(check_magic(path, start.magic, size));
    if (there < sizeof start.header) return cut_off(path, "the end of its header", size);
    EN_TRY(check_kind(path, &start.header));
    return check_tables(path, fd, &start.header, size);
}

en_status eni_plugin_check_file(const char *path)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0) {
        const int cause = errno;
        if (fd >= 0) close(fd);
        eni_error("plugin", "cannot open strategy %s: %s; give the path of a shared object", path,
                  strerror(cause));
        return cause == ENOENT || cause == ENOTDIR ? EN_ENOENT : EN_EINVAL;
    }
    en_status st = EN_EINVAL;
    if (S_ISREG(info.st_mode))
        st = check_elf(path, fd, (uint64_t)info.st_size);
    else
        eni_error("plugin", "strategy %s is %s; give the path of a shared object", path,
                  S_ISDIR(info.st_mode) ? "a folder" : "no regular file");
    close(fd);
    return st;
}
