/* port_owner.c - who owns a port: /proc/net/tcp gives the socket's inode, /proc/PID/fd whose it is; see
 * host_info.h.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/net/host_info.h"

/* The inode and owner of the socket that listens on the port; 0: none in this table. */
static unsigned long listener(const char *table, uint16_t port, unsigned *uid_out)
{
    char line[512];
    unsigned long inode = 0;
    FILE *file = fopen(table, "re");
    while (file != NULL && inode == 0 && fgets(line, sizeof line, file) != NULL) {
        unsigned local_port, state, uid;
        unsigned long here; /* sl local:port remote:port state queues timer retransmits uid timeout inode */
        int n = sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %u %*d %lu",
                       &local_port, &state, &uid, &here);
        if (n != 4 || local_port != port || state != 0x0a) continue;
        inode = here;
        *uid_out = uid;
    }
    if (file != NULL) fclose(file);
    return inode;
}

static bool holds(const char *pid, const char *socket_name)
{
    char path[300], link[64];
    bool is_found = false;
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir != NULL && !is_found && (e = readdir(dir)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%s/fd/%.32s", pid, e->d_name);
        ssize_t length = readlink(path, link, sizeof link - 1);
        if (length < 0) continue;
        link[length] = '\0';
        is_found = strcmp(link, socket_name) == 0;
    }
    if (dir != NULL) closedir(dir);
    return is_found;
}

/* The command line, its words separated by blanks and its program without folders. */
static void read_command(const char *pid, char *text_out, size_t bytes)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t length = file == NULL ? 0 : fread(text_out, 1, bytes - 1, file);
    if (file != NULL) fclose(file);
    text_out[length] = '\0';
    const char *slash = strrchr(text_out, '/'); /* of the first word: it ends at the first 0 */
    size_t cut = slash == NULL ? 0 : (size_t)(slash + 1 - text_out);
    memmove(text_out, text_out + cut, length + 1 - cut);
    length -= cut;
    while (length > 0 && text_out[length - 1] == '\0')
        length--;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text_out[i] < ' ' || text_out[i] == 0x7f) text_out[i] = ' ';
}

void eni_host_info_port_owner(uint16_t port, char text_out[200])
{
    char socket_name[64], command[128];
    unsigned uid = 0;
    unsigned long inode = listener("/proc/net/tcp", port, &uid);
    if (inode == 0) inode = listener("/proc/net/tcp6", port, &uid);
    if (inode == 0) {
        snprintf(text_out, 200, "a process that does not listen (or has just gone)");
        return;
    }
    snprintf(text_out, 200, "a process of user %u (`ss -ltnp` as that user or root shows which)", uid);
    snprintf(socket_name, sizeof socket_name, "socket:[%lu]", inode);
    DIR *dir = opendir("/proc");
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9' || !holds(e->d_name, socket_name)) continue;
        read_command(e->d_name, command, sizeof command);
        snprintf(text_out, 200, "pid %.16s (%s)", e->d_name, command);
        break;
    }
    if (dir != NULL) closedir(dir);
}
