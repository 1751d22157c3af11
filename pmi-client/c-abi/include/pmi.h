/*
 * PMI-1 for programs in C: libpmi.so.0 of Lattice.
 *
 * The functions are those of the library of this name that Slurm has, with the same numbers, so that a program that was compiled with
 * either header runs with either library. Link with -lpmi, or with `pkg-config --libs lattice-pmi`.
 *
 * Every function returns PMI_SUCCESS or one of the codes below; PMI_ERR_INIT before PMI_Init and after PMI_Finalize;
 * PMI_FAIL if the launcher is gone, or refuses. Every length counts the NUL at the end of a text. A text that does not fit is not
 * written. Functions may be called by several threads at a time; they take turns, also while one of them waits in a barrier.
 */
#ifndef PMI_H
#define PMI_H

#if defined(__cplusplus)
extern "C" {
#endif

#define PMI_SUCCESS 0
#define PMI_FAIL -1
#define PMI_ERR_INIT 1
#define PMI_ERR_NOMEM 2
#define PMI_ERR_INVALID_ARG 3
#define PMI_ERR_INVALID_KEY 4
#define PMI_ERR_INVALID_KEY_LENGTH 5
#define PMI_ERR_INVALID_VAL 6
#define PMI_ERR_INVALID_VAL_LENGTH 7
#define PMI_ERR_INVALID_LENGTH 8
#define PMI_ERR_INVALID_NUM_ARGS 9
#define PMI_ERR_INVALID_ARGS 10
#define PMI_ERR_INVALID_NUM_PARSED 11
#define PMI_ERR_INVALID_KEYVALP 12
#define PMI_ERR_INVALID_SIZE 13
#define PMI_ERR_INVALID_KVS 14

typedef int PMI_BOOL;
#define PMI_TRUE 1
#define PMI_FALSE 0

/* --- A process and its job --------------------------------------------------------------------------------------------------- */

/* Joins the job that the environment names (PMI_FD, or PMI_PORT); without a launcher the process is rank 0 of 1. `spawned` is 1 in a job
 * that another one started. A second call only answers. After PMI_Finalize a process can join again under Lattice. PMI_FD stays open and as it is. PMI_ERR_INVALID_ARG: NULL. */
int PMI_Init(int *spawned);

/* 1 between PMI_Init and PMI_Finalize, else 0. */
int PMI_Initialized(PMI_BOOL *initialized);

/* Takes leave of the launcher. A process that ends between PMI_Init and here fails its job. */
int PMI_Finalize(void);

/* Ends the job with an exit code, and this process at once, without handlers of exit(). The launcher shows the message. Does not return. */
int PMI_Abort(int exit_code, const char message[]);

int PMI_Get_size(int *size);
int PMI_Get_rank(int *rank);

/* Number of ranks that the job and those it spawns may have; -1 if the launcher sets no such number. */
int PMI_Get_universe_size(int *size);

/* Index of this process's program in a launch of several; -1 if the launcher tells none. */
int PMI_Get_appnum(int *appnum);

/* Name of the job. PMI_ERR_INVALID_LENGTH: the buffer is too small. */
int PMI_Get_id(char id[], int length);

/* The same as two numbers with a dot between them, for callers that read numbers. */
int PMI_Get_kvs_domain_id(char id[], int length);

/* Size of the buffer that either needs. */
int PMI_Get_id_length_max(int *length);

/* Number of the job's ranks on this node, and their numbers in order. PMI_ERR_INVALID_LENGTH: `length` is less than their number. */
int PMI_Get_clique_size(int *size);
int PMI_Get_clique_ranks(int ranks[], int length);

/* --- The key-value space ------------------------------------------------------------------------------------------------------ */

/* Name of the job's key-value space. */
int PMI_KVS_Get_my_name(char kvsname[], int length);

/* Sizes of the buffers for the longest name, key and value. */
int PMI_KVS_Get_name_length_max(int *length);
int PMI_KVS_Get_key_length_max(int *length);
int PMI_KVS_Get_value_length_max(int *length);

/* Puts a value, for every rank to get after the next PMI_Barrier; a later put of the key replaces it. A key is one word without '=' and
 * ';', a value one line. PMI_ERR_INVALID_KVS: not the job's space. PMI_ERR_INVALID_KEY, PMI_ERR_INVALID_VAL: NULL, too long, or signs
 * that cannot be carried. */
int PMI_KVS_Put(const char kvsname[], const char key[], const char value[]);

/* Needed by some other libraries between puts and the barrier. */
int PMI_KVS_Commit(const char kvsname[]);

/* Waits until every rank has called it as often. */
int PMI_Barrier(void);

/* Groups of ranks that are no array: all ranks of the job, this one alone, those on this node. */
#if !defined(PMI_GROUP_WORLD)
#define PMI_GROUP_WORLD ((const int *)0)
#define PMI_GROUP_SELF ((const int *)1)
#define PMI_GROUP_NODE ((const int *)2)
#endif

/* Waits until every rank of a group has called it as often with this tag (NULL: none); the group is one of the three above, or `count` ranks,
 * this one among them, in any order. What they put before is got by all of them then. Several threads may be inside, each with a tag
 * of its own; others may call other functions meanwhile. PMI_ERR_INVALID_ARG: no ranks, or a negative one. PMI_FAIL: this rank is
 * not in the group, a rank is not in the job, another thread is inside with the same tag, or the launcher does not serve it (PMI 1.2: Lattice, and
 * Hydra from 5.0 on). For PMI_GROUP_SELF that is all that is found out. */
int PMI_Barrier_group(const int *group, int count, const char *tag);

/* Gets a value. PMI_ERR_INVALID_KEY: no rank has put it. PMI_ERR_INVALID_LENGTH: the buffer is too small. */
int PMI_KVS_Get(const char kvsname[], const char key[], char value[], int length);

/* Further spaces: one rank makes one, all may use it, those of other nodes after the next barrier. Removed, nothing of it is got any more
 * (PMI_ERR_INVALID_KVS). PMI_FAIL with launchers other than Lattice: of those that are in use, none serves such a request. */
int PMI_KVS_Create(char kvsname[], int length);
int PMI_KVS_Destroy(const char kvsname[]);

/* Gets the pairs of a space one after the other; an empty key is the end. PMI_ERR_INVALID_KEY_LENGTH, PMI_ERR_INVALID_VAL_LENGTH: a
 * buffer is too small. PMI_FAIL with launchers other than Lattice. */
int PMI_KVS_Iter_first(const char kvsname[], char key[], int key_length, char value[], int value_length);
int PMI_KVS_Iter_next(const char kvsname[], char key[], int key_length, char value[], int value_length);

/* --- Other jobs --------------------------------------------------------------------------------------------------------------- */

/* Names for ports, in all jobs that the launcher's name service reaches. PMI_FAIL: the name is taken, or not there. A buffer for a port
 * has 256 bytes at least. */
int PMI_Publish_name(const char service_name[], const char port[]);
int PMI_Unpublish_name(const char service_name[]);
int PMI_Lookup_name(const char service_name[], char port[]);

/* A key and its value; either is NULL where a function says so. */
typedef struct PMI_keyval_t {
    char *key;
    char *val;
} PMI_keyval_t;

/* Starts a job of `count` programs: `maxprocs[i]` ranks of `cmds[i]` with the arguments `argvs[i]`, which end with NULL and do not begin
 * with the program. `infos[i]` are `info_sizes[i]` hints such as wdir and host. The pairs of `preput` are in the new job's space before
 * it starts. `errors[i]` is 0 on success. */
int PMI_Spawn_multiple(int count, const char *cmds[], const char **argvs[], const int maxprocs[], const int info_sizes[],
                       const PMI_keyval_t *infos[], int preput_size, const PMI_keyval_t preput[], int errors[]);

/* Takes arguments of the form PMI_KEY=VALUE from the beginning of `args`; keys keep the prefix. `*num_parsed` and `*size` are their
 * number, `*keyvalp` is for PMI_Free_keyvals, or NULL. */
int PMI_Parse_option(int num_args, char *args[], int *num_parsed, PMI_keyval_t **keyvalp, int *size);

/* Pairs of a command line [PROGRAM] -KEY [VALUE] ...: the program has no key, a key without a value no value. */
int PMI_Args_to_keyval(int *argcp, char *((*argvp)[]), PMI_keyval_t **keyvalp, int *size);

/* Frees what the two functions above made. */
int PMI_Free_keyvals(PMI_keyval_t keyvalp[], int size);

/* Describes the arguments of PMI_Parse_option. PMI_ERR_NOMEM: the text was cut, and `*length` is what it needs. */
int PMI_Get_options(char *str, int *length);

#if defined(__cplusplus)
}
#endif

#endif
