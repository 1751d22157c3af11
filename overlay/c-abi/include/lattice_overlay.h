/* Calls between processes of all launches of a user (docs/embed/overlay.md). Link with -llattice_overlay_c.
   A lattice_overlay belongs to the thread that created it. Functions return LATTICE_OK or one of the negative numbers below. */
#ifndef LATTICE_OVERLAY_H
#define LATTICE_OVERLAY_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum {
    LATTICE_OK = 0,
    LATTICE_INVALID = -1,    /* an argument is NULL or invalid */
    LATTICE_NO_ROUTE = -2,   /* no route to the process, or the session has ended */
    LATTICE_TIMEOUT = -3,
    LATTICE_BUSY = -4,       /* a queue limit is reached: retry later */
    LATTICE_NO_METHOD = -5,
    LATTICE_NO_PROCESS = -6,
    LATTICE_REFUSED = -7,
    LATTICE_HANDLER = -8,    /* the handler did not return 0 */
    LATTICE_SESSION = -9,    /* the session cannot be reached: no launch on this machine, or no such set */
    LATTICE_LOST = -10       /* the called process is lost, or the route to it; the call may have been served */
};

typedef uint64_t lattice_uid;
typedef struct lattice_overlay lattice_overlay;
typedef struct lattice_reply lattice_reply;
/* Answers a call; it may make calls itself. If it returns 0, the bytes passed to lattice_reply_set are the answer: at most 65536 bytes.
   Otherwise the caller receives LATTICE_HANDLER. */
typedef int (*lattice_handler)(void *arg, lattice_overlay *, lattice_uid from, const void *in, size_t n, lattice_reply *);

/* Open as the rank of this process in its launch; join as a guest of a set of this user. */
int lattice_overlay_open(lattice_overlay **);
int lattice_overlay_join(uint32_t set, lattice_overlay **);
void lattice_overlay_close(lattice_overlay *);

lattice_uid lattice_self(const lattice_overlay *);
/* Readable when lattice_progress has work. */
int lattice_fd(const lattice_overlay *);
/* Waits up to ms milliseconds for input, indefinitely if ms is negative, and processes it. */
int lattice_progress(lattice_overlay *, int ms);
/* The caller frees the answer with lattice_free. Calls of other processes are served meanwhile. */
int lattice_call(lattice_overlay *, lattice_uid to, uint32_t method, const void *in, size_t n, int ms, void **out, size_t *outn);
/* Methods from 256 on. */
int lattice_serve(lattice_overlay *, uint32_t method, lattice_handler, void *arg);
void lattice_reply_set(lattice_reply *, const void *, size_t);
void lattice_free(void *, size_t);

/* lattice://SET/RANK and lattice://SET/node/I. The text is truncated to n bytes, including its NUL. */
int lattice_uid_parse(const char *, lattice_uid *);
void lattice_uid_format(lattice_uid, char *, size_t n);

#ifdef __cplusplus
}
#endif
#endif
