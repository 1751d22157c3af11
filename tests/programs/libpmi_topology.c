/* The levels of the machine that each rank is in. */
#include <pmi_ext.h>
#include <stdio.h>

static void show(const char *name, PMI_Group group) {
    int levels = PMI_TOPO_LEVELS, one = 1, clusters[PMI_TOPO_LEVELS], ranks[PMI_TOPO_LEVELS];
    if (PMI_Topo_cluster_info(group, &one, clusters, ranks) != PMI_SUCCESS || one != 1)
        printf(" %s: not even one level", name);
    int code = PMI_Topo_cluster_info(group, &levels, clusters, ranks);
    printf(" %s", name);
    for (int level = 0; code == PMI_SUCCESS && level < levels; level++)
        printf(" %d:%d", clusters[level], ranks[level]);
}

int main(void) {
    int spawned, rank, kind = -1, room = 1, place;
    int outside = PMI_Topo_type(PMI_GROUP_WORLD, &kind);
    if (PMI_Init(&spawned) != PMI_SUCCESS || PMI_Get_rank(&rank) != PMI_SUCCESS)
        return 2;
    int code = PMI_Topo_type(PMI_GROUP_WORLD, &kind);
    printf("rank %d: kind %d, codes %d %d %d %d %d,", rank, kind, outside, code,
           PMI_Topo_mesh_info(PMI_GROUP_WORLD, 1, &place), PMI_Topo_type(&place, &kind),
           PMI_Topo_cluster_info(PMI_GROUP_WORLD, &room, NULL, &place));
    show("world", PMI_GROUP_WORLD);
    show("node", PMI_GROUP_NODE);
    show("self", PMI_GROUP_SELF);
    putchar('\n');
    return PMI_Finalize();
}
