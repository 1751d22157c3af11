/* What coupled.c does, by names alone and over PMIx: the value is the name of the copy. The client waits for it in its lookup. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_for(const char *gate) {
    while (getenv(gate) && access(getenv(gate), F_OK))
        usleep(10000);
}

static void make(const char *file) {
    if (getenv(file))
        fclose(fopen(getenv(file), "w"));
}

static pmix_status_t look(pmix_pdata_t *found, int wait) {
    pmix_info_t info;
    PMIX_PDATA_CONSTRUCT(found);
    PMIX_LOAD_KEY(found->key, "a bay");
    PMIX_INFO_LOAD(&info, PMIX_WAIT, &wait, PMIX_INT);
    return PMIx_Lookup(found, 1, wait ? &info : NULL, wait);
}

int main(void) {
    pmix_proc_t me;
    pmix_pdata_t found;
    pmix_info_t info;
    const char *own = getenv("COPY");
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    if (me.rank == 0) {
        wait_for("SERVER_GATE");
        PMIX_INFO_LOAD(&info, "a bay", own, PMIX_STRING);
        if (PMIx_Publish(&info, 1) != PMIX_SUCCESS)
            printf("%s: the name is refused\n", own);
        make("PUBLISHED");
    } else {
        wait_for("CLIENT_GATE");
        if (getenv("LOOKED"))
            for (int looks = 0; looks < 20; looks++)
                if (look(&found, 0) == PMIX_SUCCESS)
                    printf("%s: found before its server published\n", own);
        make("LOOKED");
        look(&found, 1);
        printf("the server of %s has the client of %s\n", found.value.data.string, own);
    }
    PMIx_Fence(NULL, 0, NULL, 0);
    PMIx_Finalize(NULL, 0);
    return 0;
}
