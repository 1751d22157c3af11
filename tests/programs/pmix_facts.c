/* Prints what a rank can know of every rank of its job, and of the nodes, and whether it was told all at once. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pmix_proc_t me;

/* A fact about a rank as a number; that its host's name is told goes without asking. */
static unsigned fact(pmix_rank_t rank, const char *key) {
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    PMIX_PROC_LOAD(&proc, me.nspace, rank);
    if (PMIx_Get(&proc, key, NULL, 0, &value) != PMIX_SUCCESS)
        return 999;
    return value->type == PMIX_UINT16 ? value->data.uint16 : value->data.uint32;
}

static const char *host(pmix_rank_t rank) {
    pmix_proc_t proc;
    pmix_info_t optional;
    pmix_value_t *value = NULL;
    bool yes = true;
    PMIX_PROC_LOAD(&proc, me.nspace, rank);
    PMIX_INFO_CONSTRUCT(&optional);
    PMIX_INFO_LOAD(&optional, PMIX_OPTIONAL, &yes, PMIX_BOOL);
    if (PMIx_Get(&proc, PMIX_HOSTNAME, &optional, 1, &value) != PMIX_SUCCESS)
        return "-";
    return value->data.string;
}

int main(void) {
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 1;
    char *nodes = NULL, *rest = NULL;
    if (PMIx_Resolve_nodes(me.nspace, &nodes) != PMIX_SUCCESS)
        return 2;
    printf("%u: nodes %s", me.rank, nodes);
    for (char *node = strtok_r(strdup(nodes), ",", &rest); node != NULL; node = strtok_r(NULL, ",", &rest)) {
        pmix_proc_t *peers = NULL;
        size_t number = 0;
        if (PMIx_Resolve_peers(node, me.nspace, &peers, &number) != PMIX_SUCCESS)
            return 3;
        printf(", on %s", node);
        for (size_t i = 0; i < number; i++)
            printf(" %u", peers[i].rank);
    }
    printf("\n");
    for (pmix_rank_t rank = 0; rank < 4; rank++)
        printf("%u: rank %u on %s %u, %u %u, program %u\n", me.rank, rank, host(rank), fact(rank, PMIX_NODEID),
               fact(rank, PMIX_LOCAL_RANK), fact(rank, PMIX_NODE_RANK), fact(rank, PMIX_APPNUM));
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 1;
}
