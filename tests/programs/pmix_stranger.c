/* Connects to rank 0 of the namespace that it is given, which somebody else may have told, and says how that ended. */
#include <pmix.h>
#include <stdio.h>

int main(int argc, char **argv) {
    pmix_proc_t me, both[2];
    if (argc < 2 || PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    both[0] = me;
    PMIX_LOAD_PROCID(&both[1], argv[1], 0);
    printf("connect: %s\n", PMIx_Error_string(PMIx_Connect(both, 2, NULL, 0)));
    PMIx_Finalize(NULL, 0);
    return 0;
}
