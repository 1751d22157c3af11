/* Ranks tell each other large values in a fence, and each reads those of so many ranks behind it. The last rank reads when the
 * others have finished. */
#include "pmix_numbers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES 20000

static char text[BYTES + 1];

static int is_wrong(pmix_rank_t rank) {
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&proc, me.nspace, rank);
    if (PMIx_Get(&proc, "text", NULL, 0, &value) != PMIX_SUCCESS)
        return 1;
    memset(text, 'a' + rank % 26, BYTES);
    int wrong = strcmp(text, value->data.string) != 0;
    PMIX_VALUE_RELEASE(value);
    return wrong;
}

int main(int argc, char **argv) {
    pmix_info_t collect;
    pmix_value_t value;
    bool yes = true;
    int wrong = 0, peers = argc > 1 ? atoi(argv[1]) : 0;
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    pmix_rank_t size = get_known(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE);
    memset(text, 'a' + me.rank % 26, BYTES);
    PMIX_VALUE_LOAD(&value, text, PMIX_STRING);
    PMIx_Put(PMIX_GLOBAL, "text", &value);
    PMIx_Commit();
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    PMIx_Fence(NULL, 0, &collect, 1);
    if (me.rank == size - 1)
        usleep(500000);
    for (int peer = 1; peer <= peers; peer++)
        wrong += is_wrong((me.rank + peer) % size);
    printf("rank %u of %u: %d wrong\n", me.rank, size, wrong);
    PMIx_Finalize(NULL, 0);
    return 0;
}
