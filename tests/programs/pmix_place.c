/* Prints the place that a rank is told for itself, and checks that its neighbours are told the same. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pmix_proc_t me;

/* A text about a rank that is among the facts about the job, or NULL. */
static char *fact(pmix_rank_t rank, const char *key) {
    pmix_proc_t proc;
    pmix_info_t optional;
    pmix_value_t *value = NULL;
    bool yes = true;
    PMIX_PROC_LOAD(&proc, me.nspace, rank);
    PMIX_INFO_CONSTRUCT(&optional);
    PMIX_INFO_LOAD(&optional, PMIX_OPTIONAL, &yes, PMIX_BOOL);
    if (PMIx_Get(&proc, key, &optional, 1, &value) != PMIX_SUCCESS || value->type != PMIX_STRING)
        return NULL;
    return value->data.string;
}

int main(void) {
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 1;
    char *cpus = fact(me.rank, PMIX_CPUSET), *place = fact(me.rank, PMIX_LOCALITY_STRING);
    char *other = fact(me.rank == 0 ? 1 : 0, PMIX_LOCALITY_STRING);
    if (cpus == NULL && place == NULL && other == NULL)
        printf("%u: unbound\n", me.rank);
    else if (cpus != NULL && place != NULL && other != NULL && strcmp(place, other) == 0)
        printf("%u: %s %s\n", me.rank, cpus, place);
    else
        printf("%u: cpus %s, place %s, the other's %s\n", me.rank, cpus ? cpus : "-", place ? place : "-", other ? other : "-");
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 1;
}
