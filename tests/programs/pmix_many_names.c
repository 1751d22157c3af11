/* Publishes, finds and withdraws as many names as the argument says, then again without withdrawing them, up to the limit. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    pmix_proc_t me;
    int wrong = 0, many = argc > 1 ? atoi(argv[1]) : 10000;
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    for (int round = 0; round < 2; round++)
        for (int number = 0; number < many; number++) {
            char name[32], *names[] = {name, NULL};
            pmix_info_t info;
            pmix_pdata_t found;
            snprintf(name, sizeof name, "name %d", number);
            PMIX_INFO_LOAD(&info, name, "a value of some length, as that of a port is", PMIX_STRING);
            wrong += PMIx_Publish(&info, 1) != PMIX_SUCCESS;
            PMIX_PDATA_CONSTRUCT(&found);
            PMIX_LOAD_KEY(found.key, name);
            wrong += PMIx_Lookup(&found, 1, NULL, 0) != PMIX_SUCCESS;
            PMIX_PDATA_DESTRUCT(&found);
            if (round == 0)
                wrong += PMIx_Unpublish(names, NULL, 0) != PMIX_SUCCESS;
        }
    printf("%d names, %d wrong\n", many, wrong);
    PMIx_Finalize(NULL, 0);
    return 0;
}
