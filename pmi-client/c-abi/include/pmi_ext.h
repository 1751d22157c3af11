/*
 * Extensions of PMI-1 that Lattice's libpmi.so.0 has: after the paper "Process Management in MPICH" resources that outlive their process,
 * topology, memory and spawn, which no other library of this name has; then collectives and nodes as Cray's library has them.
 *
 * What a rank has registered and not released is removed when its process has ended, however that was: killed, crashed, or at its end.
 * The launcher removes only what is the user's and was made during the launch (a file up to 2 s before it, by which clocks of file systems may
 * be behind), follows no symbolic link, and leaves what has been replaced by something else since its registration.
 *
 * Without a launcher, and under launchers other than Lattice, every function of resources returns PMI_ERR_UNSUPPORTED: the program must see
 * to its resources itself.
 */
#ifndef PMI_EXT_H
#define PMI_EXT_H

#include <stddef.h>

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

/* --- Topology ------------------------------------------------------------------------------------------ */

/* A group of ranks: PMI_GROUP_WORLD, PMI_GROUP_SELF or PMI_GROUP_NODE (pmi.h), no array. */
typedef const int *PMI_Group;

#define PMI_TOPO_NONE 0
#define PMI_TOPO_CLUSTER 1
#define PMI_TOPO_MESH 2

/* Most levels of PMI_Topo_cluster_info: node, NUMA domain, L3 cache. */
#define PMI_TOPO_LEVELS 3

/* PMI_TOPO_CLUSTER where the launcher says on which node ranks are, else PMI_ERR_UNSUPPORTED. */
int PMI_Topo_type(PMI_Group group, int *kind);

/* Clusters that this rank is in, from its node (level 0) to the parts of the node that it is bound to one of: NUMA domain (1), L3 cache
 * (2). `my_cluster` gets the number of the node among the job's, then numbers of domain and cache within the node; `my_rank` the position
 * among the group's ranks there. `*levels` is the room of both arrays, and becomes the number of levels written; levels that are not
 * known are not among them. PMI_ERR_UNSUPPORTED: not even the node is known. */
int PMI_Topo_cluster_info(PMI_Group group, int *levels, int my_cluster[], int my_rank[]);

/* PMI_ERR_UNSUPPORTED: no launcher tells coordinates in a mesh. */
int PMI_Topo_mesh_info(PMI_Group group, int ndims, int dims[]);

/* --- Memory -------------------------------------------------------------------------------------------- */

/* Memory that all ranks of the job on this node share since before they started, all zero then; the same place at every call, mapped as long
 * as the process lives. PMI_ERR_UNSUPPORTED: the launch did not ask for it (`lattice launch --node-memory=SIZE`). PMI_FAIL: a runtime
 * between launcher and program has closed it. */
int PMI_Node_memory(void **memory, size_t *bytes);

/* --- Other jobs --------------------------------------------------------------------------------------------------------------- */

/* Starts a job of `maxprocs` ranks of one program. `argv` ends with NULL and does not begin with the program, or is NULL.
 * `spawned_kvsname`, unless NULL, gets the name of the new job, or an empty text where the launcher does not tell it.
 * PMI_ERR_INVALID_LENGTH: the buffer is too small; the job runs if there was any room. */
int PMI_Spawn(const char *cmd, const char *argv[], const int maxprocs, char *spawned_kvsname, const int kvsnamelen);

/* Hints of a program, for `info_sizes[i]` and `infos[i]` of PMI_Spawn_multiple. */
typedef struct PMI_Info {
    int size;
    PMI_keyval_t *keyvals;
} PMI_Info;

/* Takes all arguments of the form PMI_KEY=VALUE out of a command line. Keys are without the prefix. The other arguments
 * move up, and `*argcp` becomes their number. `info->keyvals` is for PMI_Free_keyvals, or NULL. */
int PMI_Args_to_info(int *argcp, char ***argvp, PMI_Info *info);

/* --- As Cray's library has them: collectives, for all ranks, nodes and programs ----------------------------------------------------------- */

/* `all` gets `length` bytes of each rank, here in the order of ranks; Cray's library promises no order. */
int PMI_Allgather(void *own, void *all, int length);

/* The same with `lengths[i]` bytes of rank i, which all ranks know. PMI_ERR_INVALID_LENGTH: `length` is not this rank's. */
int PMI_Allgatherv(void *own, int length, void *all, int *lengths);

/* All ranks get `length` bytes of rank 0. */
int PMI_Bcast(void *data, int length);

/* Version of this library. */
int PMI_Get_version_info(int *major, int *minor, int *revision);

/* Ranks of this job on this node, as PMI_Get_clique_size and PMI_Get_clique_ranks tell them. */
int PMI_Get_numpes_on_smp(int *number);
int PMI_Get_pes_on_smp(int *ranks, int length);

/* Number of the node of a rank, among the job's from 0 on, and an array of that of each rank, which stays. PMI_FAIL: the launcher does not say
 * where ranks are. */
int PMI_Get_nid(int rank, int *node);
int PMI_Get_nidlist_ptr(void **nodes);

/* Programs of a job that runs several, by their numbers from 0 on (PMI_Get_appnum): how many there are; how many ranks one has; the position
 * of this rank among those of its program, and the first of them; how many of them are on this node, and which. PMI_ERR_INVALID_ARG: no such
 * program. PMI_ERR_UNSUPPORTED: the launcher does not say which program other ranks run; Lattice does where it gives them memory of their
 * job. */
int PMI_Get_num_apps(int *number);
int PMI_Get_app_size(int app, int *size);
int PMI_Get_rank_in_app(int *position);
int PMI_Get_base_rank_in_app(int *rank);
int PMI_Get_numpes_in_app_on_smp(int *number);
int PMI_Get_pes_in_app_on_smp(int *ranks, int length);

#if defined(__cplusplus)
}
#endif

#endif
