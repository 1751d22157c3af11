/* The process sets that an MPI session sees: their names, then their number.

   Open MPI 5.0.11 counts the launcher's sets only once it has read their names; and no group is made of one, as it takes the length of a
   set's name for the place of a rank in the group, and writes beyond it. Both under its own launcher as well. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *one, const void *other) { return strcmp(one, other); }

int main(void) {
    MPI_Session session;
    char names[16][MPI_MAX_PSET_NAME_LEN];
    int count = 0, length;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session);
    do
        length = MPI_MAX_PSET_NAME_LEN;
    while (MPI_Session_get_nth_pset(session, MPI_INFO_NULL, count, &length, names[count]) == MPI_SUCCESS && ++count < 16);
    MPI_Session_get_num_psets(session, MPI_INFO_NULL, &count);
    qsort(names, count, sizeof names[0], by_name);
    for (int index = 0; index < count; index++)
        printf("%s%s", names[index], index + 1 < count ? " " : "\n");
    MPI_Session_finalize(&session);
    return 0;
}
