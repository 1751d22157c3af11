/* Rank 0 puts a node attribute late; the others wait for it, and none finds what was never put. */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    int spawned, size, rank, appnum, found;
    char value[1024] = "nothing", mapping[1024] = "nothing", absent[1024];
    if (PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS)
        return 2;
    if (rank == 0) {
        usleep(100000);
        PMI2_Info_PutNodeAttr("segment", "/dev/shm/x;y");
    }
    PMI2_Info_GetNodeAttr("segment", value, sizeof value, &found, 1);
    PMI2_Info_GetJobAttr("PMI_process_mapping", mapping, sizeof mapping, &found);
    PMI2_Info_GetNodeAttr("never", absent, sizeof absent, &found, 0);
    printf("rank %d: %s %s %s\n", rank, value, mapping, found ? "found" : "absent");
    PMI2_Finalize();
    return 0;
}
