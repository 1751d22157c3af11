/* Programs of a job as Cray's pmi.h has them; where they are not told, the codes. */
#include <pmi_ext.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    int spawned, rank, appnum, apps, size, position, first, here, ranks[64], codes[6], bad = 0;
    if (PMI_Init(&spawned) || PMI_Get_rank(&rank) || PMI_Get_appnum(&appnum))
        return 2;
    codes[0] = PMI_Get_num_apps(&apps);
    codes[1] = PMI_Get_app_size(0, &size);
    codes[2] = PMI_Get_rank_in_app(&position);
    codes[3] = PMI_Get_base_rank_in_app(&first);
    codes[4] = PMI_Get_numpes_in_app_on_smp(&here);
    codes[5] = PMI_Get_pes_in_app_on_smp(ranks, 64);
    printf("rank %d:", rank);
    if (codes[0] == PMI_SUCCESS) {
        for (int call = 1; call < 6; call++)
            bad += codes[call] != PMI_SUCCESS;
        printf(" program %d of %d,", appnum, apps);
        for (int app = 0; app < apps; app++) {
            bad += PMI_Get_app_size(app, &size) != PMI_SUCCESS;
            printf(" %d", size);
        }
        printf(" ranks, place %d from %d, here", position, first);
        for (int index = 0; index < here; index++)
            printf(" %d", ranks[index]);
        bad += PMI_Get_app_size(apps, &size) != PMI_ERR_INVALID_ARG || PMI_Get_app_size(-1, &size) != PMI_ERR_INVALID_ARG ||
               PMI_Get_num_apps(NULL) != PMI_ERR_INVALID_ARG || PMI_Get_pes_in_app_on_smp(NULL, 64) != PMI_ERR_INVALID_ARG ||
               PMI_Get_pes_in_app_on_smp(ranks, here - 1) != PMI_ERR_INVALID_LENGTH;
        printf(", %d wrong\n", bad);
    } else {
        for (int call = 0; call < 6; call++)
            printf(" %d", codes[call]);
        printf("\n");
    }
    return PMI_Finalize();
}
