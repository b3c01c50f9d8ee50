/* Preloaded into a program: the system refuses the calls that REFUSED names, as "chmod,flock". */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <dlfcn.h>

static int refused(const char *name) {
    const char *names = getenv("REFUSED");
    size_t length = strlen(name);
    for (const char *at = names; at && (at = strstr(at, name)); at += length)
        if ((at == names || at[-1] == ',') && (at[length] == ',' || !at[length]))
            return 1;
    return 0;
}

#define REFUSES(call, name, error, parameters, arguments)                      \
    int call parameters {                                                      \
        if (refused(name)) {                                                   \
            errno = error;                                                     \
            return -1;                                                         \
        }                                                                      \
        int(*next) parameters = (int(*) parameters)dlsym(RTLD_NEXT, #call);    \
        return next arguments;                                                 \
    }

struct timespec;
REFUSES(chmod, "chmod", EPERM, (const char *p, mode_t m), (p, m))
REFUSES(fchmod, "chmod", EPERM, (int f, mode_t m), (f, m))
REFUSES(fchmodat, "chmod", EPERM, (int d, const char *p, mode_t m, int f), (d, p, m, f))
REFUSES(flock, "flock", ENOLCK, (int f, int o), (f, o))
REFUSES(link, "link", EPERM, (const char *a, const char *b), (a, b))
REFUSES(linkat, "link", EPERM, (int c, const char *a, int d, const char *b, int f), (c, a, d, b, f))
REFUSES(symlink, "symlink", EPERM, (const char *a, const char *b), (a, b))
REFUSES(symlinkat, "symlink", EPERM, (const char *a, int d, const char *b), (a, d, b))
REFUSES(fsync, "fsync", EINVAL, (int f), (f))
REFUSES(fdatasync, "fsync", EINVAL, (int f), (f))
REFUSES(utimensat, "utime", EPERM, (int d, const char *p, const struct timespec *t, int f), (d, p, t, f))
REFUSES(futimens, "utime", EPERM, (int f, const struct timespec *t), (f, t))
REFUSES(memfd_create, "memfd", ENOSYS, (const char *n, unsigned f), (n, f))

/* These return the error. */
int posix_fallocate(int f, off_t o, off_t l) {
    if (refused("fallocate"))
        return EOPNOTSUPP;
    int (*next)(int, off_t, off_t) = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate");
    return next(f, o, l);
}
int posix_fallocate64(int f, off_t o, off_t l) { return posix_fallocate(f, o, l); }
