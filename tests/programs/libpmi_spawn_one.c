/* Spawns itself by PMI_Spawn, with the hints of a command line taken out of it. */
#include <pmi_ext.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    int spawned, rank, own;
    char name[256], child[256] = "?", little[2] = "";
    if (PMI_Init(&spawned) != PMI_SUCCESS || PMI_KVS_Get_my_name(name, sizeof name) != PMI_SUCCESS)
        return 2;
    PMI_Get_rank(&rank);
    if (spawned) {
        printf("child %d: %s\n", rank, argc > 1 ? argv[1] : "-");
        return PMI_Finalize();
    }
    char *words[] = {argv[0], "PMI_wdir=/tmp", "-v", "PMI_=x", "PMI_host=a=b", NULL}, **line = words;
    int count = 5;
    PMI_Info info = {7, NULL};
    int code = PMI_Args_to_info(&count, &line, &info);
    printf("args: %d, %d left: %s %s %s, %d taken:", code, count, words[1], words[2], words[3] ? "more" : "no more", info.size);
    for (int i = 0; i < info.size; i++)
        printf(" %s '%s'", info.keyvals[i].key, info.keyvals[i].val);
    int again = PMI_Args_to_info(&count, &line, &info) == PMI_SUCCESS ? info.size : -1;
    printf(", then %d, %d, NULL %d\n", again, count, PMI_Args_to_info(&count, NULL, &info));
    const char *arguments[] = {"one argument", NULL};
    code = PMI_Spawn(argv[0], arguments, 2, child, sizeof child);
    own = strcmp(child, name) != 0 && child[0] != '\0' && child[0] != '?';
    printf("spawn: %d, a name of its own %d, without room %d, negative %d, missing %d\n", code, own,
           PMI_Spawn(argv[0], NULL, 1, little, 0), PMI_Spawn(argv[0], NULL, -1, NULL, 0), PMI_Spawn(NULL, NULL, 1, NULL, 0));
    return PMI_Finalize();
}
