/* A hostile rank: writes nonsense over all that it may write, in every way that there is. Arguments:
 *
 *   memory ROUNDS      what it shares with others of its job: the memory of the job must bear it, that of the node is its own
 *   all DIRECTORY      that, then its descriptors, and files where the session removes some: links to DIRECTORY, which is not its own
 *
 * It prints how many changes of the memory of the job got through, and tells its launcher nothing that makes sense.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BYTES = 4096, DESCRIPTORS = 256 };

static char nonsense[1 << 16];
static int through, tried;

/* Counts an attempt. */
static void attempt(int succeeded) {
    tried++;
    through += succeeded;
}

static int descriptor_in(const char *variable) {
    const char *text = getenv(variable);
    return text ? atoi(text) : -1;
}

/* Writes through the process's own memory, past the protection of its pages. */
static int write_past_protection(void *place) {
    int memory = open("/proc/self/mem", O_RDWR);
    int written = memory >= 0 && pwrite(memory, nonsense, 64, (off_t)(size_t)place) > 0;
    close(memory);
    return written;
}

static void change(int memory) {
    attempt(write(memory, nonsense, BYTES) > 0);
    attempt(pwrite(memory, nonsense, BYTES, 192) > 0);
    attempt(ftruncate(memory, 0) == 0);
    attempt(ftruncate(memory, 1l << 40) == 0);
    attempt(fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES) == 0);
    attempt(fallocate(memory, FALLOC_FL_ZERO_RANGE, 0, BYTES) == 0);
    attempt(fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    char *map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    attempt(map != MAP_FAILED && memset(map, 0xff, BYTES) != NULL);
    char *read_only = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, memory, 0);
    if (read_only != MAP_FAILED) {
        attempt(madvise(read_only, BYTES, MADV_REMOVE) == 0);
        attempt(write_past_protection(read_only));
        attempt(mprotect(read_only, BYTES, PROT_READ | PROT_WRITE) == 0 && memset(read_only, 0xff, BYTES) != NULL);
        munmap(read_only, BYTES);
    }
}

static void scribble_memory(void) {
    int job = descriptor_in("LATTICE_JOB_MEMORY"), node = descriptor_in("LATTICE_NODE_MEMORY");
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", job);
    int ways[] = {job, open(path, O_RDONLY), open(path, O_RDWR), open(path, O_WRONLY | O_TRUNC)};
    for (int way = 0; way < 4; way++) {
        if (ways[way] >= 0)
            change(ways[way]);
        if (way > 0)
            close(ways[way]);
    }
    struct stat status;
    if (node >= 0 && fstat(node, &status) == 0) {
        char *map = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, node, 0);
        if (map != MAP_FAILED)
            munmap(memset(map, 0xa5, status.st_size), status.st_size);
        /* Others would get a SIGBUS. */
        attempt(ftruncate(node, 0) == 0 && status.st_size > 0);
    }
}

/* Where the session removes what ranks leave, there are links to what is not its own. */
static void scribble_files(const char *directory) {
    char pattern[4096], link[4200];
    const char *temporary = getenv("TMPDIR"), *id = getenv("LATTICE_LAUNCH_ID");
    snprintf(pattern, sizeof pattern, "%s/lattice-%s.*", temporary ? temporary : "/tmp", id);
    glob_t places;
    if (glob(pattern, 0, NULL, &places) != 0)
        return;
    for (size_t place = 0; place < places.gl_pathc; place++) {
        snprintf(link, sizeof link, "%s/link.%s", places.gl_pathv[place], getenv("LATTICE_RANK"));
        symlink(directory, link);
    }
    globfree(&places);
}

/* Passes descriptors on, which are to be closed by whoever wants none. */
static void pass_descriptors(int socket) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct iovec part = {nonsense, 8};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(8 * sizeof(int))};
    for (int index = 0; index < 8; index++)
        ((int *)CMSG_DATA(header))[index] = open("/dev/zero", O_RDWR);
    sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void scribble_descriptor(int descriptor) {
    struct stat status;
    /* A device, such as /dev/null, is the machine's, and root may change it. */
    if (fstat(descriptor, &status) != 0 || S_ISCHR(status.st_mode))
        return;
    int small = 1;
    fcntl(descriptor, F_SETFL, O_NONBLOCK | O_APPEND);
    fcntl(descriptor, F_SETPIPE_SZ, 4096);
    setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    fchmod(descriptor, 0);
    ftruncate(descriptor, 0);
    if (S_ISSOCK(status.st_mode))
        pass_descriptors(descriptor);
    for (int round = 0; round < 20; round++)
        if (write(descriptor, nonsense, sizeof nonsense) < 0)
            break;
    shutdown(descriptor, SHUT_RD);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    srand(getpid());
    for (size_t index = 0; index < sizeof nonsense; index++)
        nonsense[index] = (char)rand();
    if (argc < 3)
        return 2;
    int everything = !strcmp(argv[1], "all");
    for (int round = 0; round < (everything ? 1 : atoi(argv[2])); round++)
        scribble_memory();
    printf("%d changes got through of %s\n", through, tried >= 10 ? "many" : "few");
    fflush(stdout);
    if (!everything)
        return 0;
    scribble_files(argv[2]);
    for (int descriptor = 0; descriptor < DESCRIPTORS; descriptor++)
        /* What ranks print is their own matter, and read by the test. */
        if (descriptor != STDOUT_FILENO && descriptor != STDERR_FILENO)
            scribble_descriptor(descriptor);
    for (;;)
        pause();
}
