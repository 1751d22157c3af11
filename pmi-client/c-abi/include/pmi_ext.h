/*
 * Extensions of PMI-1 that Lattice's libpmi.so.0 has, and no other library of this name: resources that outlive their process, after the
 * paper "Process Management in MPICH".
 *
 * What a rank has registered and not released is removed when its process has ended, however that was: killed, crashed, or at its end.
 * The launcher removes only what is the user's and was made during the launch, follows no symbolic link, and leaves what has been
 * replaced by something else since its registration.
 *
 * Without a launcher, and under launchers other than Lattice, every function below returns PMI_ERR_UNSUPPORTED: the program must see to its
 * resources itself.
 */
#ifndef PMI_EXT_H
#define PMI_EXT_H

#include "pmi.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* The launcher has no such service. */
#define PMI_ERR_UNSUPPORTED 15

/*
 * The name of a resource is KIND:ID:
 *
 *   shm:ID sem:ID msg:ID         shared memory, semaphores, message queue of System V, by the number that shmget(2) and the like return
 *   pshm:NAME psem:NAME mq:NAME  shared memory, semaphore, message queue of POSIX, by the name that shm_open(3) and the like take
 *   file:PATH dir:PATH           a file, or a directory with all that is in it, by an absolute path
 *   pid:ID                       a process of this launch that is no rank: it is killed
 *
 * A rank registers 256 at most. PMI_ERR_INVALID_ARG: no such kind. PMI_FAIL: the launcher refuses, as the resource is not there, is another
 * user's, is older than the launch, or is not registered.
 */

/* Tells that the resource is about to be made: if this process ends before it registers the resource, the launcher looks for what it has
 * made. The ID is left out where only the making tells it: "shm:". A path or a name that leads to something already is left alone. Of
 * System V, shared memory alone can be found so: the kernel does not tell who has made semaphores and message queues. */
int PMI_Resource_intend(const char name[]);

/* Registers a resource that this process has made, and takes back an intent of it. `at_exit` is called by PMI_Finalize, `at_abort` by
 * PMI_Abort, unless it was released before; the last registered one comes first, each may be NULL, and may call PMI. */
int PMI_Resource_register(const char name[], void *(*at_exit)(void *), void *at_exit_extra_data, void *(*at_abort)(void *),
                          void *at_abort_extra_data);

/* Tells that this process is about to remove the resource, and has done so. If that takes longer than `timeout` seconds (0: no limit) the
 * user is told, and with `lattice launch --resource-timeout=fail` this process is killed. PMI_Resource_release_end also takes back an
 * intent. */
int PMI_Resource_release_begin(const char name[], int timeout);
int PMI_Resource_release_end(const char name[]);

#if defined(__cplusplus)
}
#endif

#endif
