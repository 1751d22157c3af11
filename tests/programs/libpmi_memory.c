/* Each rank writes to the memory that the ranks of its node share, and adds up what is there. `libpmi_memory spawn`: then rank 0 has two
 * more do the same, who have memory of their own. */
#include <pmi_ext.h>
#include <stdio.h>

static int sum(const volatile unsigned char *memory, size_t bytes) {
    int all = 0;
    for (size_t i = 0; i < bytes; i++)
        all += memory[i];
    return all;
}

int main(int argc, char **argv) {
    int spawned, rank;
    void *memory = NULL, *again = NULL;
    size_t bytes = 0;
    int outside = PMI_Node_memory(&memory, &bytes);
    if (PMI_Init(&spawned) != PMI_SUCCESS || PMI_Get_rank(&rank) != PMI_SUCCESS)
        return 2;
    int code = PMI_Node_memory(&memory, &bytes);
    if (code != PMI_SUCCESS || PMI_Node_memory(&again, &bytes) != PMI_SUCCESS || again != memory || outside != PMI_ERR_INIT
        || PMI_Node_memory(NULL, &bytes) != PMI_ERR_INVALID_ARG) {
        printf("rank %d: codes %d %d\n", rank, outside, code);
        return PMI_Finalize();
    }
    int before = sum(memory, bytes);
    PMI_Barrier();
    ((volatile unsigned char *)memory)[bytes - 1 - (size_t)rank * 4096] = (unsigned char)(rank + 1);
    PMI_Barrier();
    printf("rank %d, spawned %d: %lu bytes, %d before, %d after\n", rank, spawned, (unsigned long)bytes, before, sum(memory, bytes));
    if (argc > 1 && rank == 0) {
        const char *commands[] = {argv[0]};
        const char **arguments[] = {NULL};
        int ranks[] = {2}, sizes[] = {0}, errors[1];
        const PMI_keyval_t *hints[] = {NULL};
        if (PMI_Spawn_multiple(1, commands, arguments, ranks, sizes, hints, 0, NULL, errors) != PMI_SUCCESS)
            puts("no spawn");
    }
    return PMI_Finalize();
}
