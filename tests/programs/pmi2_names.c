/* Rank 0 publishes a name, rank 1 looks it up; then it is gone. */
#include <slurm/pmi2.h>
#include <stdio.h>

int main(void) {
    int spawned, size, rank, appnum;
    char port[1024] = "";
    if (PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS)
        return 2;
    if (rank == 0)
        printf("publish %d\n", PMI2_Nameserv_publish("an ocean", NULL, "port=1;tag#0$x"));
    PMI2_KVS_Fence();
    if (rank == 1) {
        int code = PMI2_Nameserv_lookup("an ocean", NULL, port, sizeof port);
        printf("lookup %d %s\n", code, port);
    }
    PMI2_KVS_Fence();
    if (rank == 0)
        printf("unpublish %d\n", PMI2_Nameserv_unpublish("an ocean", NULL));
    PMI2_KVS_Fence();
    if (rank == 1)
        printf("lookup again %s\n", PMI2_Nameserv_lookup("an ocean", NULL, port, sizeof port) ? "fails" : "works");
    PMI2_Finalize();
    return 0;
}
