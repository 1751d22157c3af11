/* All ranks make a group with a context id, say it, and keep it until they read a line.

   pmix_group NAME */
#include "pmix_numbers.h"
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    pmix_info_t with_id, *results = NULL;
    pmix_proc_t all;
    size_t count = 0;
    bool yes = true;
    char byte;
    if (argc != 2 || PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 1;
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    PMIX_INFO_LOAD(&with_id, PMIX_GROUP_ASSIGN_CONTEXT_ID, &yes, PMIX_BOOL);
    if (PMIx_Group_construct(argv[1], &all, 1, &with_id, 1, &results, &count) != PMIX_SUCCESS)
        return 2;
    for (size_t result = 0; result < count; result++)
        if (PMIX_CHECK_KEY(&results[result], PMIX_GROUP_CONTEXT_ID))
            printf("context %zu\n", results[result].value.data.size);
    fflush(stdout);
    while (read(0, &byte, 1) == 1 && byte != '\n')
        ;
    PMIx_Group_destruct(argv[1], NULL, 0);
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 3;
}
