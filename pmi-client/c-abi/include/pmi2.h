/*
 * PMI-2 for programs in C: libpmi2.so.0 of Lattice.
 *
 * The functions are those of the library of this name that Slurm has, with the same numbers and structures, so that a program that was
 * compiled with either header runs with either library. Link with -lpmi2, or with `pkg-config --libs lattice-pmi2`.
 *
 * Every function but PMI2_Initialized returns PMI2_SUCCESS or one of the codes below; PMI2_ERR_INIT before PMI2_Init and after
 * PMI2_Finalize; PMI2_ERR_OTHER if the launcher is gone, or refuses. Every size of a buffer counts the NUL at the end of a text.
 * Functions may be called by several threads at a time; they take turns, also while one of them waits in a fence.
 */
#ifndef PMI2_H_INCLUDED
#define PMI2_H_INCLUDED

#if defined(__cplusplus)
extern "C" {
#endif

#define PMI2_SUCCESS 0
#define PMI2_FAIL -1
#define PMI2_ERR_INIT 1
#define PMI2_ERR_NOMEM 2
#define PMI2_ERR_INVALID_ARG 3
#define PMI2_ERR_INVALID_KEY 4
#define PMI2_ERR_INVALID_KEY_LENGTH 5
#define PMI2_ERR_INVALID_VAL 6
#define PMI2_ERR_INVALID_VAL_LENGTH 7
#define PMI2_ERR_INVALID_LENGTH 8
#define PMI2_ERR_INVALID_NUM_ARGS 9
#define PMI2_ERR_INVALID_ARGS 10
#define PMI2_ERR_INVALID_NUM_PARSED 11
#define PMI2_ERR_INVALID_KEYVALP 12
#define PMI2_ERR_INVALID_SIZE 13
#define PMI2_ERR_OTHER 14

/* Sizes of buffers for every key, every value and every attribute. */
#define PMI2_MAX_KEYLEN 64
#define PMI2_MAX_VALLEN 1024
#define PMI2_MAX_ATTRVALUE 1024

/* No rank in particular. */
#define PMI2_ID_NULL -1

/* --- A process and its job ---------------------------------------------------------------------------------------------------- */

/* Joins the job that the environment names (PMI_FD, or PMI_PORT); without a launcher the process is rank 0 of 1. `*spawned` is 1 in a
 * job that another one started; `*appnum` is -1 if the launcher tells none. A second call only answers. After PMI2_Finalize a process
 * can join again under Lattice. PMI_FD stays open and as it is. */
int PMI2_Init(int *spawned, int *size, int *rank, int *appnum);

/* Takes leave of the launcher. A process that ends between PMI2_Init and here fails its job. */
int PMI2_Finalize(void);

/* 1 between PMI2_Init and PMI2_Finalize, else 0; no code. */
int PMI2_Initialized(void);

/* Ends the job, or if `flag` is 0 this process alone (which fails its job all the same, unless the launcher bears that), at once and
 * without handlers of exit(). The launcher shows the message, and takes the exit code from it if it is one of MPI_Abort. Does not return. */
int PMI2_Abort(int flag, const char msg[]);

/* Name of the job. Without a launcher PMI2_ERR_OTHER. PMI2_ERR_INVALID_LENGTH: the buffer is too small. */
int PMI2_Job_GetId(char jobid[], int jobid_size);

int PMI2_Job_GetRank(int *rank);

/* Number of ranks of the job. */
int PMI2_Info_GetSize(int *size);

/* Connections to other jobs: no launcher serves them. PMI2_ERR_OTHER. */
typedef struct PMI2_Connect_comm {
    int (*read)(void *buf, int maxlen, void *ctx);
    int (*write)(const void *buf, int len, void *ctx);
    void *ctx;
    int isMaster;
} PMI2_Connect_comm_t;
int PMI2_Job_Connect(const char jobid[], PMI2_Connect_comm_t *conn);
int PMI2_Job_Disconnect(const char jobid[]);

/* --- The key-value space ------------------------------------------------------------------------------------------------------ */

/* Puts a value, for every rank to get after the next PMI2_KVS_Fence; a later put of the key replaces it. Keys and values are one line. */
int PMI2_KVS_Put(const char key[], const char value[]);

/* Waits until every rank has called it as often. */
int PMI2_KVS_Fence(void);

/* Gets a value. `jobid` is NULL or this job's; `src_pmi_id` is a hint, and may be PMI2_ID_NULL. `*vallen` is the length of the value; if it
 * was cut to the buffer, minus its length. `value` may be NULL with `maxvalue` 0. PMI2_ERR_OTHER: no rank has put it. */
int PMI2_KVS_Get(const char *jobid, int src_pmi_id, const char key[], char value[], int maxvalue, int *vallen);

/* Gives `value` to the ranks before and after this one, and gets theirs; waits for them. Under Hydra this ends the job. */
#define HAVE_PMIX_RING 1
int PMIX_Ring(const char value[], int *rank, int *ranks, char left[], char right[], int maxvalue);

/* --- Attributes --------------------------------------------------------------------------------------------------------------- */

/* Attributes that the ranks of a node put for each other, without a fence. With `waitfor` the call waits until one is there. One that is
 * absent is no failure: `*found` is 0. A value that is longer than the buffer is cut. */
int PMI2_Info_PutNodeAttr(const char name[], const char value[]);
int PMI2_Info_GetNodeAttr(const char name[], char value[], int valuelen, int *found, int waitfor);

/* Facts about the job: PMI_process_mapping, universeSize, hasNameServ. */
int PMI2_Info_GetJobAttr(const char name[], char value[], int valuelen, int *found);

/* The same for values that are lists of numbers, such as 1,2,3; `*outlen` is how many were written. */
int PMI2_Info_GetNodeAttrIntArray(const char name[], int array[], int arraylen, int *outlen, int *found);
int PMI2_Info_GetJobAttrIntArray(const char name[], int array[], int arraylen, int *outlen, int *found);

/* --- Other jobs --------------------------------------------------------------------------------------------------------------- */

/* A key and a value. Only these two are read. */
typedef struct MPID_Info {
    int handle;
    int pobj_mutex;
    int ref_count;
    struct MPID_Info *next;
    char *key;
    char *value;
} MPID_Info;

/* A key and a value, as MPICH has them since 4.1. */
typedef struct PMI2_keyval {
    const char *key;
    const char *val;
} PMI2_keyval_t;

/* Names for ports, in all jobs that the launcher's name service reaches. PMI2_ERR_OTHER: the name is taken, or not there.
 * PMI2_ERR_INVALID_LENGTH: the buffer is too small. Hints are not read. */
int PMI2_Nameserv_publish(const char service_name[], const struct MPID_Info *info_ptr, const char port[]);
int PMI2_Nameserv_lookup(const char service_name[], const struct MPID_Info *info_ptr, char port[], int portLen);
int PMI2_Nameserv_unpublish(const char service_name[], const struct MPID_Info *info_ptr);

/* Starts a job of `count` programs: `maxprocs[i]` ranks of `cmds[i]` with the `argcs[i]` arguments `argvs[i]`, which do not begin with the
 * program. `infos[i]` are `info_sizes[i]` hints such as wdir and host. The pairs of `preput` are in the new job's space before it starts.
 * `jobid` is the new job's name; it may be NULL. `errors[i]` is 0 on success.
 *
 * Two layouts are in use for the pairs, under one name: Slurm's with MPID_Info, where `preput` has pointers, and MPICH's with
 * PMI2_keyval_t, where it has structures. A program that defines PMI2_KEYVAL before this header calls the second. */
#if defined(PMI2_KEYVAL)
#define PMI2_Job_Spawn PMI2_Job_Spawn_keyvals
#else
int PMI2_Job_Spawn(int count, const char *cmds[], int argcs[], const char **argvs[], const int maxprocs[], const int info_sizes[],
                   const struct MPID_Info *infos[], int preput_size, const struct MPID_Info *preput[], char jobid[], int jobid_size,
                   int errors[]);
#endif
int PMI2_Job_Spawn_keyvals(int count, const char *cmds[], int argcs[], const char **argvs[], const int maxprocs[],
                           const int info_sizes[], const PMI2_keyval_t *infos[], int preput_size, const PMI2_keyval_t preput[],
                           char jobid[], int jobid_size, int errors[]);

#if defined(__cplusplus)
}
#endif

#endif
