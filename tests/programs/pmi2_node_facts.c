/* Attributes that version 1.3 of PMI-2 names, as far as they are there. */
#include <slurm/pmi2.h>
#include <stdio.h>

static void show(const char *name, int of_node) {
    char value[1024] = "";
    int found = 0;
    if (of_node)
        PMI2_Info_GetNodeAttr(name, value, sizeof value, &found, 0);
    else
        PMI2_Info_GetJobAttr(name, value, sizeof value, &found);
    printf(" %s", found ? value : "-");
}

int main(void) {
    int spawned, size, rank, appnum, found = 0, count = 0, ranks[16];
    if (PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS)
        return 2;
    PMI2_Info_GetNodeAttrIntArray("localRanks", ranks, 16, &count, &found);
    printf("rank %d:", rank);
    for (int i = 0; i < count; i++)
        printf(" %d", ranks[i]);
    putchar(';');
    show("localRanksCount", 1);
    show("physTopology", 0);
    show("physTopologyLevels", 0);
    show("memPoolType", 1);
    show("memAnonMMAPfd", 1);
    show("cartDims", 0);
    putchar('\n');
    PMI2_Finalize();
    return 0;
}
