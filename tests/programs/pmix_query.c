/* Ranks ask libpmix what it cannot know by itself, over two lives of it, and stop and continue each other.

   pmix_query NODES SETS: each fact is compared with what all ranks must be told. */
#include "pmix_numbers.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int wrong;

static void check(int right, const char *what) {
    if (!right) {
        fprintf(stderr, "rank %u: wrong: %s\n", me.rank, what);
        wrong++;
    }
}

/* The first value that is found; the status says whether there is one. */
static pmix_status_t ask(const char *key, const char *qualifier, const char *text, pmix_info_t *found) {
    pmix_query_t query;
    pmix_info_t *results = NULL;
    size_t count = 0;
    pmix_status_t status;
    bool yes = true;
    PMIX_QUERY_CONSTRUCT(&query);
    PMIX_ARGV_APPEND(status, query.keys, key);
    PMIX_QUERY_QUALIFIERS_CREATE(&query, qualifier ? 2 : 1);
    PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_QUERY_REFRESH_CACHE, &yes, PMIX_BOOL);
    if (qualifier)
        PMIX_INFO_LOAD(&query.qualifiers[1], qualifier, text, PMIX_STRING);
    status = PMIx_Query_info(&query, 1, &results, &count);
    if (status == PMIX_SUCCESS && count != 1)
        status = PMIX_ERROR;
    if (status == PMIX_SUCCESS)
        PMIX_INFO_XFER(found, &results[0]);
    PMIX_QUERY_DESTRUCT(&query);
    return status;
}

static const char *text_of(const char *key) {
    pmix_info_t found;
    return ask(key, NULL, NULL, &found) == PMIX_SUCCESS && found.value.type == PMIX_STRING ? found.value.data.string : "";
}

static void check_sets(pmix_rank_t size) {
    pmix_info_t found;
    const char *names = text_of(PMIX_QUERY_PSET_NAMES);
    check(!strcmp(names, "app://ice,app://ocean"), names);
    check(ask(PMIX_QUERY_NUM_PSETS, NULL, NULL, &found) == PMIX_SUCCESS && found.value.data.size == 2, "number of sets");
    check(ask(PMIX_QUERY_PSET_MEMBERSHIP, PMIX_PSET_NAME, "app://ice", &found) == PMIX_SUCCESS, "members");
    const pmix_data_array_t *members = found.value.data.darray;
    const pmix_proc_t *proc = members->array;
    check(members->type == PMIX_PROC && members->size == 1, "one member");
    check(proc->rank == size - 1 && !strcmp(proc->nspace, me.nspace), "the member");
    check(ask(PMIX_QUERY_PSET_MEMBERSHIP, PMIX_PSET_NAME, "mpi://WORLD", &found) == PMIX_SUCCESS, "world");
    check(found.value.data.darray->size == size, "all of the world");
    check(ask(PMIX_QUERY_PSET_MEMBERSHIP, PMIX_PSET_NAME, "app://none", &found) == PMIX_ERR_NOT_FOUND, "no such set");
    check(ask("pmix.qry.nothing", NULL, NULL, &found) == PMIX_ERR_NOT_SUPPORTED, "no such key");
}

static void check_namespaces(pmix_rank_t size) {
    pmix_info_t found;
    check(ask(PMIX_QUERY_NAMESPACE_INFO, NULL, NULL, &found) == PMIX_SUCCESS, "jobs");
    const pmix_info_t *job = found.value.data.darray->array;
    const pmix_info_t *facts = job->value.data.darray->array;
    check(found.value.data.darray->size == 1 && job->value.data.darray->size == 3, "one job");
    check(!strcmp(facts[0].value.data.string, me.nspace), "the job's name");
    check(strstr(facts[1].value.data.string, "pmix_query") != NULL, "command line");
    check(facts[2].value.data.uint32 == size, "the job's size");
}

/* All ranks make a group, and look at it before the first one leaves it. */
static void check_groups(pmix_rank_t size) {
    pmix_info_t found, *results = NULL;
    pmix_proc_t all;
    size_t count = 0;
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    check(PMIx_Group_construct("tide", &all, 1, NULL, 0, &results, &count) == PMIX_SUCCESS, "a group");
    check(ask(PMIX_QUERY_NUM_GROUPS, NULL, NULL, &found) == PMIX_SUCCESS && found.value.data.size == 1, "number of groups");
    check(ask(PMIX_QUERY_GROUP_NAMES, NULL, NULL, &found) == PMIX_SUCCESS, "groups");
    check(!strcmp(((char **)found.value.data.darray->array)[0], "tide"), "the group's name");
    check(ask(PMIX_QUERY_GROUP_MEMBERSHIP, PMIX_GROUP_ID, "tide", &found) == PMIX_SUCCESS, "members");
    check(found.value.data.darray->size == size, "all members");
    PMIx_Fence(NULL, 0, NULL, 0);
    check(PMIx_Group_destruct("tide", NULL, 0) == PMIX_SUCCESS, "its end");
    PMIx_Fence(NULL, 0, NULL, 0);
    check(ask(PMIX_QUERY_NUM_GROUPS, NULL, NULL, &found) == PMIX_SUCCESS && found.value.data.size == 0, "no group");
}

static void check_processes(pmix_rank_t size, const char *key, int all) {
    pmix_info_t found;
    pmix_status_t status = ask(key, PMIX_NSPACE, me.nspace, &found);
    check(status == PMIX_SUCCESS && found.value.type == PMIX_DATA_ARRAY, key);
    if (status != PMIX_SUCCESS)
        return;
    const pmix_data_array_t *table = found.value.data.darray;
    const pmix_proc_info_t *rows = table->array;
    int mine = 0;
    check(table->type == PMIX_PROC_INFO && (!all || table->size == size), "rows");
    for (size_t row = 0; row < table->size; row++) {
        check(!all || rows[row].proc.rank == row, "rows in order");
        check(strstr(rows[row].executable_name, "pmix_query") != NULL, "programs");
        check(rows[row].state == PMIX_PROC_STATE_CONNECTED, "all are connected");
        mine += rows[row].proc.rank == me.rank && rows[row].pid == getpid();
    }
    check(mine == 1, "this process");
}

static void check_memory(int nodes) {
    pmix_info_t found;
    check(ask(PMIX_AVAIL_PHYS_MEMORY, NULL, NULL, &found) == PMIX_SUCCESS, "memory");
    check(found.value.type == PMIX_UINT64 && found.value.data.uint64 > 1 << 20, "bytes of the node");
    check(ask(PMIX_QUERY_MEMORY_USAGE, NULL, NULL, &found) == PMIX_SUCCESS, "usage");
    const pmix_data_array_t *array = found.value.data.darray;
    check((int)array->size == nodes, "nodes");
    const pmix_info_t *node = array->array;
    const pmix_info_t *facts = node[0].value.data.darray->array;
    check(!strcmp(facts[2].key, PMIX_CLIENT_AVG_MEMORY) && facts[2].value.data.fval > 0.1, "mean memory of ranks");
}

/* The launch ends after 90 seconds. */
static void check_time(void) {
    pmix_info_t found;
    check(ask(PMIX_TIME_REMAINING, NULL, NULL, &found) == PMIX_SUCCESS, "time that is left");
    check(found.value.type == PMIX_UINT32 && found.value.data.uint32 > 0 && found.value.data.uint32 <= 90, "seconds");
}

/* The nodes of the launch are granted, and no more. */
static void check_allocation(int nodes) {
    pmix_info_t asked, *results = NULL;
    size_t count = 0;
    uint64_t number = nodes;
    PMIX_INFO_LOAD(&asked, PMIX_ALLOC_NUM_NODES, &number, PMIX_UINT64);
    pmix_status_t status = PMIx_Allocation_request(PMIX_ALLOC_EXTEND, &asked, 1, &results, &count);
    check(status == PMIX_SUCCESS, PMIx_Error_string(status));
    check(count == 3 && results[1].value.data.uint64 == number, "number of nodes that are granted");
    check(count == 3 && !strcmp(results[2].key, PMIX_ALLOC_NODE_LIST), "names of nodes that are granted");
    number++;
    PMIX_INFO_LOAD(&asked, PMIX_ALLOC_NUM_NODES, &number, PMIX_UINT64);
    check(PMIx_Allocation_request(PMIX_ALLOC_NEW, &asked, 1, &results, &count) == PMIX_ERR_OUT_OF_RESOURCE, "too many nodes");
    check(PMIx_Allocation_request(PMIX_ALLOC_RELEASE, NULL, 0, &results, &count) == PMIX_ERR_NOT_SUPPORTED, "a release");
}

/* Rank 0 stops the last rank and has it continue. */
static void check_signals(pmix_rank_t size) {
    pmix_proc_t target;
    pmix_info_t directive;
    bool yes = true;
    int none = SIGRTMAX + 1;
    PMIX_LOAD_PROCID(&target, me.nspace, size - 1);
    PMIX_INFO_LOAD(&directive, PMIX_JOB_CTRL_PAUSE, &yes, PMIX_BOOL);
    check(PMIx_Job_control(&target, 1, &directive, 1, NULL, NULL) == PMIX_SUCCESS, "pause");
    PMIX_INFO_LOAD(&directive, PMIX_JOB_CTRL_RESUME, &yes, PMIX_BOOL);
    check(PMIx_Job_control(&target, 1, &directive, 1, NULL, NULL) == PMIX_SUCCESS, "resume");
    PMIX_INFO_LOAD(&directive, PMIX_JOB_CTRL_SIGNAL, &none, PMIX_INT);
    check(PMIx_Job_control(&target, 1, &directive, 1, NULL, NULL) == PMIX_ERR_BAD_PARAM, "no such signal");
    target.rank = size;
    PMIX_INFO_LOAD(&directive, PMIX_JOB_CTRL_KILL, &yes, PMIX_BOOL);
    check(PMIx_Job_control(&target, 1, &directive, 1, NULL, NULL) == PMIX_ERR_BAD_PARAM, "no such rank");
}

static volatile sig_atomic_t continued;
static void on_continue(int signal) { continued += signal == SIGCONT; }

int main(int argc, char **argv) {
    pmix_rank_t size = 0;
    int nodes = argc > 1 ? atoi(argv[1]) : 1;
    signal(SIGCONT, on_continue);
    for (int life = 0; life < 2; life++) {
        if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
            return 2;
        size = get_known(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE);
        PMIx_Fence(NULL, 0, NULL, 0);
        check(strstr(text_of(PMIX_QUERY_NAMESPACES), me.nspace) != NULL, "namespaces");
        check(strstr(text_of(PMIX_QUERY_SUPPORTED_KEYS), PMIX_QUERY_PROC_TABLE) != NULL, "keys");
        check(strstr(text_of(PMIX_QUERY_SPAWN_SUPPORT), PMIX_HOST) != NULL, "directives of a spawn");
        check(strchr(text_of(PMIX_QUERY_STABLE_ABI_VERSION), '.') != NULL, "version");
        check_sets(size);
        check_namespaces(size);
        check_groups(size);
        check_processes(size, PMIX_QUERY_PROC_TABLE, 1);
        check_processes(size, PMIX_QUERY_LOCAL_PROC_TABLE, 0);
        check_memory(nodes);
        check_time();
        check_allocation(nodes);
        PMIx_Fence(NULL, 0, NULL, 0);
        if (me.rank == 0)
            check_signals(size);
        PMIx_Fence(NULL, 0, NULL, 0);
        if (me.rank == size - 1)
            check(continued == life + 1, "stopped and continued");
        PMIx_Fence(NULL, 0, NULL, 0);
        PMIx_Finalize(NULL, 0);
    }
    printf("rank %u of %u: %d wrong\n", me.rank, size, wrong);
    return 0;
}
