/* Rank 0 publishes a value that rank 1 already waits for; both agree that it can be withdrawn. */
#include <pmix.h>
#include <stdio.h>
#include <unistd.h>

static pmix_status_t look_up(pmix_pdata_t *found, int wait) {
    pmix_info_t info;
    PMIX_PDATA_CONSTRUCT(found);
    PMIX_LOAD_KEY(found->key, "an ocean");
    PMIX_INFO_LOAD(&info, PMIX_WAIT, &wait, PMIX_INT);
    return PMIx_Lookup(found, 1, wait ? &info : NULL, wait);
}

int main(void) {
    pmix_proc_t me;
    pmix_pdata_t found;
    char *names[] = {"an ocean", NULL};
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    if (me.rank == 1) {
        pmix_status_t status = look_up(&found, 1);
        printf("looked up: %s, %s of rank %u\n", PMIx_Error_string(status), found.value.data.string, found.proc.rank);
    } else if (me.rank == 0) {
        pmix_info_t info;
        usleep(200000);
        PMIX_INFO_LOAD(&info, names[0], "pacific", PMIX_STRING);
        printf("published: %s\n", PMIx_Error_string(PMIx_Publish(&info, 1)));
        printf("again: %s\n", PMIx_Publish(&info, 1) == PMIX_SUCCESS ? "published" : "refused");
    }
    PMIx_Fence(NULL, 0, NULL, 0);
    if (me.rank == 0)
        printf("withdrawn: %s\n", PMIx_Error_string(PMIx_Unpublish(names, NULL, 0)));
    PMIx_Fence(NULL, 0, NULL, 0);
    if (me.rank == 1)
        printf("looked up again: %s\n", look_up(&found, 0) == PMIX_SUCCESS ? "found" : "not found");
    PMIx_Finalize(NULL, 0);
    return 0;
}
