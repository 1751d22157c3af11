/* A job of one rank spawns three children, which learn who their parent is; both meet, and get each other's values. */
#include <pmix.h>
#include <stdio.h>

static pmix_proc_t me;

static long number_of(const char *nspace, pmix_rank_t rank, const char *key) {
    pmix_proc_t proc;
    pmix_value_t *value;
    PMIX_LOAD_PROCID(&proc, nspace, rank);
    pmix_status_t status = PMIx_Get(&proc, key, NULL, 0, &value);
    return status == PMIX_SUCCESS ? (long)value->data.uint32 : status;
}

static void put_number(uint32_t number) {
    pmix_value_t value;
    PMIX_VALUE_LOAD(&value, &number, PMIX_UINT32);
    PMIx_Put(PMIX_GLOBAL, "number", &value);
    PMIx_Commit();
}

/* Connects both jobs, and adds up the numbers of the other one. */
static void meet(const char *who, const char *other) {
    pmix_proc_t both[2];
    PMIX_LOAD_PROCID(&both[0], me.nspace, PMIX_RANK_WILDCARD);
    PMIX_LOAD_PROCID(&both[1], other, PMIX_RANK_WILDCARD);
    pmix_status_t connected = PMIx_Connect(both, 2, NULL, 0);
    long size = number_of(other, PMIX_RANK_WILDCARD, PMIX_JOB_SIZE), sum = 0;
    for (long rank = 0; rank < size; rank++)
        sum += number_of(other, rank, "number");
    printf("%s %u: %s, %ld others, whose numbers make %ld\n", who, me.rank, PMIx_Error_string(connected), size, sum);
    PMIx_Disconnect(both, 2, NULL, 0);
}

int main(int argc, char **argv) {
    pmix_value_t *parent;
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    if (argc > 1) {
        if (PMIx_Get(&me, PMIX_PARENT_ID, NULL, 0, &parent) != PMIX_SUCCESS)
            return 3;
        put_number(10 + me.rank);
        meet("child", parent->data.proc->nspace);
    } else {
        pmix_app_t app;
        char child[PMIX_MAX_NSLEN + 1];
        PMIX_APP_CONSTRUCT(&app);
        app.cmd = argv[0];
        char *arguments[] = {argv[0], "child", NULL};
        app.argv = arguments;
        app.maxprocs = 3;
        put_number(1);
        if (PMIx_Spawn(NULL, 0, &app, 1, child) != PMIX_SUCCESS)
            return 4;
        meet("parent", child);
    }
    PMIx_Finalize(NULL, 0);
    return 0;
}
