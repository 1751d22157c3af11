/* MPI is started and ended twice in one process, through sessions. */
#include <mpi.h>
#include <stdio.h>

static int sum_of_ones(void) {
    MPI_Session session;
    MPI_Group group;
    MPI_Comm comm;
    int one = 1, sum;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Comm_create_from_group(group, "again", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    MPI_Comm_free(&comm);
    MPI_Group_free(&group);
    MPI_Session_finalize(&session);
    return sum;
}

int main(void) {
    int first = sum_of_ones(), second = sum_of_ones();
    printf("%d then %d ranks\n", first, second);
    return 0;
}
