/* A library for LD_PRELOAD that stands between a process and the disk.

   It watches what is written below one folder: it counts these calls, fails the n-th (or all from the n-th on) with an
   error number of choice, and logs them with their bytes so that a loss of power can be replayed. It also counts
   internet sockets. Everything is off until shim_watch() is called, by ctypes. Streams of stdio are opened as streams
   of our own calls: GDAL writes through them, and libc's own writes would pass us by. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8, TRUNCATE = 16, MKDIR = 32, UNLINK = 64 };

/* Shared with forked children, so that whoever started them can read it. */
struct counts {
    long seen, failed, sockets;
};
static struct counts *counts;

static char folder[PATH_MAX];
static size_t folder_length;
static int kinds, error_number, from_then_on, log_file = -1;
static long nth;
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER; /* what is logged happened in the order of the log */

#define REAL(name) ({ static __typeof__(name) *found; found ? found : (found = dlsym(RTLD_NEXT, #name)); })

__attribute__((constructor)) static void prepare(void) {
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

struct counts *shim_counts(void) { return counts; }

/* Watch a folder. Of the calls whose kind is in `watched`, number `fail` fails with `error`, and with `on` all later
   ones too; 0 for none. Calls are logged to the descriptor `log`, -1 for nowhere. */
void shim_watch(const char *path, int watched, long fail, int error, int on, int log) {
    snprintf(folder, sizeof folder, "%s/", path);
    kinds = watched, nth = fail, error_number = error, from_then_on = on, log_file = log;
    memset(counts, 0, sizeof *counts);
    folder_length = strlen(folder); /* last: from here on it watches */
}

/* --- which calls are watched */

static int below(const char *path) {
    return folder_length && strncmp(path, folder, folder_length) == 0;
}

static const char *absolute(int at, const char *path, char *buffer) {
    if (path[0] == '/') return path;
    char link[64];
    ssize_t length;
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    if (at == AT_FDCWD ? !getcwd(buffer, PATH_MAX) : (length = readlink(link, buffer, PATH_MAX - 1)) < 0) return "";
    if (at != AT_FDCWD) buffer[length] = 0;
    if (strcmp(path, ".") == 0) return buffer;
    size_t used = strlen(buffer);
    snprintf(buffer + used, PATH_MAX - used, "/%s", strncmp(path, "./", 2) ? path : path + 2);
    return buffer;
}

/* The path of a descriptor below the folder, also of a file that was removed; NULL of any other. */
static const char *path_of(int file, char *buffer) {
    if (!folder_length) return NULL;
    int before = errno;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    errno = before;
    if (length < 0) return NULL;
    buffer[length] = 0;
    size_t own = folder_length - 1;
    return below(buffer) || (strncmp(buffer, folder, own) == 0 && buffer[own] == 0) ? buffer : NULL;
}

static int fails(int kind) {
    if (!(kinds & kind)) return 0;
    long number = __atomic_add_fetch(&counts->seen, 1, __ATOMIC_SEQ_CST);
    if (!nth || !(number == nth || (from_then_on && number > nth))) return 0;
    __atomic_add_fetch(&counts->failed, 1, __ATOMIC_SEQ_CST);
    errno = error_number;
    return 1;
}

/* --- the log: a line "CALL INODE OFFSET LENGTH", then the paths, each with a NUL, and the bytes */

static void put(const void *bytes, size_t length) {
    for (const char *next = bytes; length;) {
        ssize_t done = REAL(write)(log_file, next, length);
        if (done <= 0) abort();
        next += done, length -= done;
    }
}

static void note(const char *call, long inode, long offset, const char *one, const char *two, const void *bytes, size_t length) {
    if (log_file < 0) return;
    int before = errno;
    char line[128];
    put(line, snprintf(line, sizeof line, "%s %ld %ld %zu\n", call, inode, offset, length));
    put(one, strlen(one) + 1);
    put(two, strlen(two) + 1);
    if (bytes) put(bytes, length);
    errno = before;
}

static long inode_of(int file) {
    struct stat status;
    return fstat(file, &status) ? -1 : (long)status.st_ino;
}

#define LOCKED(type, call) \
    ({ pthread_mutex_lock(&order); type outcome = (call); pthread_mutex_unlock(&order); outcome; })

/* --- opening */

static int open_it(int at, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    int changes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
    const char *whole = folder_length && changes ? absolute(at, path, buffer) : "";
    if (!below(whole)) return REAL(openat)(at, path, flags, mode);
    if (fails(OPEN)) return -1;
    struct stat status;
    int existed = fstatat(at, path, &status, 0) == 0;
    int file = REAL(openat)(at, path, flags, mode);
    if (file >= 0 && !existed) note("create", inode_of(file), 0, whole, "", NULL, 0);
    else if (file >= 0 && flags & O_TRUNC) note("truncate", inode_of(file), 0, whole, "", NULL, 0);
    return file;
}

#define OPENING(name, ...) \
    { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        return LOCKED(int, open_it(__VA_ARGS__, path, flags, mode)); \
    }
int open(const char *path, int flags, ...) OPENING(open, AT_FDCWD)
int open64(const char *path, int flags, ...) OPENING(open64, AT_FDCWD)
int openat(int at, const char *path, int flags, ...) OPENING(openat, at)
int openat64(int at, const char *path, int flags, ...) OPENING(openat64, at)
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* --- writing */

static ssize_t write_it(int file, const void *bytes, size_t length, off_t offset) {
    char buffer[PATH_MAX];
    const char *path = path_of(file, buffer);
    if (path && fails(WRITE)) return -1;
    off_t place = offset;
    if (path && offset < 0) {
        struct stat status;
        place = fcntl(file, F_GETFL) & O_APPEND && !fstat(file, &status) ? status.st_size : lseek(file, 0, SEEK_CUR);
    }
    ssize_t done = offset < 0 ? REAL(write)(file, bytes, length) : REAL(pwrite64)(file, bytes, length, offset);
    if (path && done > 0) note("write", inode_of(file), place, path, "", bytes, done);
    return done;
}

ssize_t write(int file, const void *bytes, size_t length) {
    if (!folder_length) return REAL(write)(file, bytes, length);
    return LOCKED(ssize_t, write_it(file, bytes, length, -1));
}
ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t offset) {
    if (!folder_length) return REAL(pwrite64)(file, bytes, length, offset);
    return LOCKED(ssize_t, write_it(file, bytes, length, offset));
}
ssize_t pwrite(int file, const void *bytes, size_t length, off_t offset) { return pwrite64(file, bytes, length, offset); }

/* Whoever copies inside of the kernel falls back to reading and writing. */
ssize_t sendfile64(int out, int in, off64_t *offset, size_t length) {
    char buffer[PATH_MAX];
    if (!path_of(out, buffer)) return REAL(sendfile64)(out, in, offset, length);
    errno = EINVAL;
    return -1;
}
ssize_t sendfile(int out, int in, off_t *offset, size_t length) { return sendfile64(out, in, offset, length); }
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t length, unsigned flags) {
    char buffer[PATH_MAX];
    if (!path_of(out, buffer)) return REAL(copy_file_range)(in, from, out, to, length, flags);
    errno = EINVAL;
    return -1;
}

static int truncate_it(int file, off64_t size) {
    char buffer[PATH_MAX];
    const char *path = path_of(file, buffer);
    if (path && fails(TRUNCATE)) return -1;
    int outcome = REAL(ftruncate64)(file, size);
    if (path && outcome == 0) note("truncate", inode_of(file), size, path, "", NULL, 0);
    return outcome;
}
int ftruncate64(int file, off64_t size) { return LOCKED(int, truncate_it(file, size)); }
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

static int allocate_it(int file, off64_t offset, off64_t length) {
    char buffer[PATH_MAX];
    const char *path = path_of(file, buffer);
    if (path && fails(TRUNCATE)) return errno;
    int outcome = REAL(posix_fallocate64)(file, offset, length);
    if (path && outcome == 0) note("allocate", inode_of(file), offset + length, path, "", NULL, 0);
    return outcome;
}
int posix_fallocate64(int file, off64_t offset, off64_t length) { return LOCKED(int, allocate_it(file, offset, length)); }
int posix_fallocate(int file, off_t offset, off_t length) { return posix_fallocate64(file, offset, length); }

static int sync_it(int file, int data_only) {
    char buffer[PATH_MAX];
    const char *path = path_of(file, buffer);
    if (path && fails(SYNC)) return -1;
    int outcome = data_only ? REAL(fdatasync)(file) : REAL(fsync)(file);
    if (path && outcome == 0) note("sync", inode_of(file), 0, path, "", NULL, 0);
    return outcome;
}
int fsync(int file) { return LOCKED(int, sync_it(file, 0)); }
int fdatasync(int file) { return LOCKED(int, sync_it(file, 1)); }

/* --- names */

static int rename_it(int from, const char *old, int to, const char *new, unsigned flags) {
    char one[PATH_MAX], two[PATH_MAX];
    const char *first = absolute(from, old, one), *second = absolute(to, new, two);
    int watched = below(first) || below(second);
    if (watched && fails(RENAME)) return -1;
    struct stat status = {0};
    fstatat(from, old, &status, AT_SYMLINK_NOFOLLOW);
    int outcome = REAL(renameat2)(from, old, to, new, flags);
    if (watched && outcome == 0) note("rename", status.st_ino, 0, first, second, NULL, 0);
    return outcome;
}
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return LOCKED(int, rename_it(from, old, to, new, flags));
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

static int mkdir_it(int at, const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    const char *whole = absolute(at, path, buffer);
    struct stat status;
    int watched = below(whole) && fstatat(at, path, &status, 0) != 0; /* what is there is asked for in vain */
    if (watched && fails(MKDIR)) return -1;
    int outcome = REAL(mkdirat)(at, path, mode);
    if (watched && outcome == 0 && !fstatat(at, path, &status, 0)) note("mkdir", status.st_ino, 0, whole, "", NULL, 0);
    return outcome;
}
int mkdirat(int at, const char *path, mode_t mode) { return LOCKED(int, mkdir_it(at, path, mode)); }
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

static int remove_it(int at, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *whole = absolute(at, path, buffer);
    struct stat status;
    int watched = below(whole) && fstatat(at, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (watched && fails(UNLINK)) return -1;
    int outcome = REAL(unlinkat)(at, path, flags);
    if (watched && outcome == 0) note("remove", status.st_ino, 0, whole, "", NULL, 0);
    return outcome;
}
int unlinkat(int at, const char *path, int flags) { return LOCKED(int, remove_it(at, path, flags)); }
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0 && S_ISDIR(status.st_mode) ? rmdir(path) : unlink(path);
}

/* --- streams */

#define MOST_STREAMS 1024
static struct stream {
    FILE *stream;
    int file;
} streams[MOST_STREAMS];

static ssize_t stream_read(void *cookie, char *bytes, size_t length) {
    return read(((struct stream *)cookie)->file, bytes, length);
}
static ssize_t stream_write(void *cookie, const char *bytes, size_t length) {
    ssize_t done = write(((struct stream *)cookie)->file, bytes, length);
    return done < 0 ? 0 : done; /* as fopencookie wants it */
}
static int stream_seek(void *cookie, off64_t *offset, int whence) {
    off64_t place = lseek64(((struct stream *)cookie)->file, *offset, whence);
    if (place < 0) return -1;
    *offset = place;
    return 0;
}
static int stream_close(void *cookie) {
    int file = ((struct stream *)cookie)->file;
    memset(cookie, 0, sizeof(struct stream));
    return close(file);
}

static FILE *stream_of(int file, const char *mode) {
    for (struct stream *place = streams; place < streams + MOST_STREAMS; place++)
        if (!place->stream) {
            cookie_io_functions_t calls = {stream_read, stream_write, stream_seek, stream_close};
            place->file = file;
            return place->stream = fopencookie(place, mode, calls);
        }
    abort();
}

FILE *fopen64(const char *path, const char *mode) {
    char buffer[PATH_MAX];
    int writes = mode[0] != 'r' || strchr(mode, '+');
    if (!folder_length || !writes || !below(absolute(AT_FDCWD, path, buffer))) return REAL(fopen64)(path, mode);
    int flags = strchr(mode, '+') ? O_RDWR : O_WRONLY;
    flags |= mode[0] == 'w' ? O_CREAT | O_TRUNC : mode[0] == 'a' ? O_CREAT | O_APPEND : 0;
    int file = open(path, flags | O_CLOEXEC, 0666);
    return file < 0 ? NULL : LOCKED(FILE *, stream_of(file, mode));
}
FILE *fopen(const char *path, const char *mode) { return fopen64(path, mode); }

int fileno(FILE *stream) {
    for (struct stream *place = streams; place < streams + MOST_STREAMS; place++)
        if (place->stream == stream) return place->file;
    return REAL(fileno)(stream);
}

/* --- the network */

int socket(int domain, int type, int protocol) {
    if (domain == AF_INET || domain == AF_INET6) __atomic_add_fetch(&counts->sockets, 1, __ATOMIC_SEQ_CST);
    return REAL(socket)(domain, type, protocol);
}
