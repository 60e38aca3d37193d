/* A sick machine for one process, by LD_PRELOAD: its disk fails, fills, is read-only or slow, its clock is wrong, or it dies at
 * the n-th write. Compiled by shim.py, which also writes the struct below into the file SICK_FILE; the file is mapped, so a
 * change takes effect at once. Only files below SICK_FOLDER are concerned. Programs are told apart by their command line: the
 * server has the first struct, agents the second, all others are healthy. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct sick {
    int write_errno;    /* of writes, truncations and allocations */
    int sync_errno;     /* of fsync and fdatasync */
    int open_errno;     /* of everything that opens for writing, creates, renames or removes */
    int sync_delay_ms;  /* each fsync takes this much longer */
    int kill_after;     /* SIGKILL at this many further writes, syncs or renames; 0 never */
    int reserved;
    long long clock_ns; /* added to the time of day */
};

static struct sick *sick;
static char folder[4096];
static size_t folder_len;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("SICK_FILE"), *below = getenv("SICK_FOLDER");
    if (!file || !below) return;
    char line[65536];
    int fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
    ssize_t n = fd < 0 ? 0 : syscall(SYS_read, fd, line, sizeof line - 1);
    if (fd >= 0) syscall(SYS_close, fd);
    if (n <= 0) return;
    for (ssize_t i = 0; i < n; i++) if (!line[i]) line[i] = ' ';
    line[n] = 0;
    int which = strstr(line, "shoal.server") ? 0 : strstr(line, "shoal.agent") ? 1 : -1;
    if (which != 0) unsetenv("LD_PRELOAD"); /* workers, pip and git are healthy */
    if (which < 0) return;
    fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (map == MAP_FAILED) return;
    snprintf(folder, sizeof folder, "%s", below);
    folder_len = strlen(folder);
    sick = (struct sick *)map + which;
}

static int is_below(const char *path) { return !strncmp(path, folder, folder_len); }

static int concerns(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return is_below(path);
}

static void count(int fd) {
    if (sick && sick->kill_after > 0 && (fd < 0 || concerns(fd)) && __sync_sub_and_fetch(&sick->kill_after, 1) == 0)
        raise(SIGKILL);
}

static int fails(int fd, int number) {
    if (!number || !concerns(fd)) return 0;
    errno = number;
    return 1;
}

#define NEXT(name) ({ static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); next; })
#define WRITES(type, name, fd, params, args)                 \
    type name params {                                       \
        count(fd);                                           \
        if (sick && fails(fd, sick->write_errno)) return -1; \
        return NEXT(name) args;                              \
    }

WRITES(ssize_t, write, fd, (int fd, const void *b, size_t n), (fd, b, n))
WRITES(ssize_t, pwrite, fd, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o))
WRITES(ssize_t, pwrite64, fd, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o))
WRITES(ssize_t, writev, fd, (int fd, const struct iovec *v, int n), (fd, v, n))
WRITES(ssize_t, pwritev, fd, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
WRITES(ssize_t, pwritev64, fd, (int fd, const struct iovec *v, int n, off64_t o), (fd, v, n, o))
WRITES(int, ftruncate, fd, (int fd, off_t n), (fd, n))
WRITES(int, ftruncate64, fd, (int fd, off64_t n), (fd, n))
WRITES(int, fallocate, fd, (int fd, int m, off_t o, off_t n), (fd, m, o, n))
WRITES(int, fallocate64, fd, (int fd, int m, off64_t o, off64_t n), (fd, m, o, n))

#define SYNCS(name)                                                                    \
    int name(int fd) {                                                                 \
        count(fd);                                                                     \
        if (sick && sick->sync_delay_ms && concerns(fd)) usleep(sick->sync_delay_ms * 1000); \
        if (sick && fails(fd, sick->sync_errno)) return -1;                            \
        return NEXT(name)(fd);                                                         \
    }
SYNCS(fsync)
SYNCS(fdatasync)

static int may_not(const char *path, int flags) {
    if (!sick || !sick->open_errno || !path || !is_below(path) || !(flags & (O_WRONLY | O_RDWR | O_CREAT))) return 0;
    errno = sick->open_errno;
    return 1;
}

#define OPENS(name, first, args)                                  \
    int name(first const char *path, int flags, ...) {            \
        mode_t mode = 0;                                          \
        if (flags & (O_CREAT | O_TMPFILE)) {                      \
            va_list list;                                         \
            va_start(list, flags);                                \
            mode = va_arg(list, mode_t);                          \
            va_end(list);                                         \
        }                                                         \
        if (may_not(path, flags)) return -1;                      \
        return NEXT(name) args;                                   \
    }
#define AT int at,
OPENS(open, , (path, flags, mode))
OPENS(open64, , (path, flags, mode))
OPENS(openat, AT, (at, path, flags, mode))
OPENS(openat64, AT, (at, path, flags, mode))

#define CHANGES(name, path, params, args)           \
    int name params {                               \
        if (sick && is_below(path)) count(-1);      \
        if (may_not(path, O_WRONLY)) return -1;     \
        return NEXT(name) args;                     \
    }
CHANGES(rename, to, (const char *from, const char *to), (from, to))
CHANGES(renameat, to, (int a, const char *from, int b, const char *to), (a, from, b, to))
CHANGES(unlink, path, (const char *path), (path))
CHANGES(unlinkat, path, (int at, const char *path, int flags), (at, path, flags))
CHANGES(mkdir, path, (const char *path, mode_t mode), (path, mode))

int clock_gettime(clockid_t id, struct timespec *t) {
    int done = NEXT(clock_gettime)(id, t);
    if (!done && sick && sick->clock_ns && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        long long ns = t->tv_sec * 1000000000LL + t->tv_nsec + sick->clock_ns;
        t->tv_sec = ns / 1000000000LL;
        t->tv_nsec = ns % 1000000000LL;
    }
    return done;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    int done = NEXT(gettimeofday)(t, zone);
    if (!done && sick && sick->clock_ns) {
        long long us = t->tv_sec * 1000000LL + t->tv_usec + sick->clock_ns / 1000;
        t->tv_sec = us / 1000000LL;
        t->tv_usec = us % 1000000LL;
    }
    return done;
}

time_t time(time_t *into) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (into) *into = t.tv_sec;
    return t.tv_sec;
}
