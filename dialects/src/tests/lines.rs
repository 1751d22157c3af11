//! Lines of `mpiexec` and `mpirun`, and their translations to lines of `lattice launch`.

use super::{means, read};

/// Lines of public scripts and documentation (Horovod, DeepSpeed, likwid, the manuals), except lines that name files.
#[test]
fn lines_of_mpiexec_mean_a_launch() {
    for (line, expected) in [
        ("mpiexec ./a", "./a"),
        (
            "mpirun -np 4 ./a x -np 2",
            "--tasks-per=1:core --universe-size=slots --cpu-bind=numa:over=numa:or-none --ntasks=4 ./a x -np 2",
        ),
        ("lattice mpiexec -n 4 ./a", "--ntasks=4 ./a"),
        (
            "/usr/bin/mpirun -n4 ./a",
            "--tasks-per=1:core --universe-size=slots --cpu-bind=numa:over=numa:or-none --ntasks=4 ./a",
        ),
        ("mpiexec -np=4 ./a", "--ntasks=4 ./a"),
        ("mpiexec --n 4 ./a", "--ntasks=4 ./a"),
        (
            "mpirun -c 4 ./a",
            "--tasks-per=1:core --universe-size=slots --cpu-bind=numa:over=numa:or-none --ntasks=4 ./a",
        ),
        ("mpiexec -n 4 -ppn 2 ./a", "--distribution=plane=2 --ntasks=4 ./a"),
        (
            "mpiexec -perhost 2 -n 3 ./a : -n 1 ./b",
            "--cpu-bind=cores:even:overcommit --distribution=plane=2 --ntasks=3 ./a : --ntasks=1 ./b",
        ),
        ("mpiexec -ppn 2 -n 3 ./a : ./b", "--tasks-per-node=2 --ntasks=3 ./a : ./b"),
        ("mpiexec -hosts a,b -n 8 -ppn 2 ./a", "--nodelist=a,b --distribution=plane=2 --ntasks=8 ./a"),
        (
            "mpirun -n 4 -npernode 2 ./a",
            "--universe-size=slots --cpu-bind=numa:over=numa:or-none --tasks-per-node=2 --distribution=plane=2 --ntasks=4 ./a",
        ),
        (
            "mpirun --map-by ppr:2:node --bind-to core -n 3 ./a",
            "--universe-size=slots --cpu-bind=cores --tasks-per-node=2 --distribution=plane=2 --ntasks=3 ./a",
        ),
        ("mpiexec -hosts a,b -n 4 ./a", "--nodelist=a,b --distribution=cyclic --ntasks=4 ./a"),
        ("mpiexec -hosts a,b -ppn 2 ./a", "--nodelist=a,b --tasks-per-node=2 ./a"),
        ("mpiexec -hosts a:2,b:1 ./a", "--host=a:2,b:1 ./a"),
        ("mpiexec -hosts a:2,b:1 -n 3 ./a", "--host=a:2,b:1 --ntasks=3 ./a"),
        ("mpiexec -hosts a:2,b:1 -n 7 ./a", "--host=a:2,b:1,a:2,b:1,a:2,b:1 --ntasks=7 ./a"),
        (
            "mpirun -H a:4,b:4 -np 8 ./a",
            "--host=a:4,b:4 --universe-size=slots --cpu-bind=numa:over=numa:or-none --ntasks=8 ./a",
        ),
        ("mpirun --host a,b ./a", "--host=a:1,b:1 --cpu-bind=numa:over=numa:or-none ./a"),
        ("mpiexec -n 1 -host a ./m : -n 3 -host b ./w", "--ntasks=1 --host=a:1 ./m : --ntasks=3 --host=b:3 ./w"),
        (
            "mpiexec -n 2 -host a,b ./m : -n 3 -host c:2,d ./w",
            "--ntasks=2 --host=a:1,b:1 ./m : --ntasks=3 --host=c:2,d:1 ./w",
        ),
        (
            "mpirun --oversubscribe -n 4 -host a,b ./m : -n 3 -host c ./w : ./x",
            "--ntasks=4 --host=a:2,b:2 ./m : --ntasks=3 --host=c:3 ./w : --host=a:1,b:1 ./x",
        ),
        ("mpirun -x A=1 ./a", "--tasks-per=1:core --cpu-bind=numa:over=numa:or-none --env=A=1 ./a"),
        ("mpirun -x A=1 --oversubscribe -np 9 ./a", "--universe-size=slots --env=A=1 --ntasks=9 ./a"),
        ("mpirun -x A=1 --oversubscribe ./a", "--tasks-per=1:core --env=A=1 ./a"),
        (
            "mpirun -x A=1 --use-hwthread-cpus -np 9 ./a",
            "--tasks-per=1:hwthread --universe-size=slots --cpu-bind=numa:over=numa:or-none --env=A=1 --ntasks=9 ./a",
        ),
        (
            "mpirun -x A=1 -H a:2 -np 2 ./a",
            "--host=a:2 --universe-size=slots --cpu-bind=cores:or-none --env=A=1 --ntasks=2 ./a",
        ),
        (
            "mpirun -x A=1 --map-by slot:PE=2 -np 2 ./a",
            "--universe-size=slots --cpu-bind=cores:cores=2 --env=A=1 --ntasks=2 ./a",
        ),
        ("mpirun -x A=1 ./a : ./b", "--cpu-bind=numa:over=numa:or-none --env=A=1 ./a : --env=A=1 ./b"),
        (
            "mpirun -np 4 python -c x",
            "--tasks-per=1:core --universe-size=slots --cpu-bind=numa:over=numa:or-none --ntasks=4 python -c x",
        ),
        ("mpiexec -n 1 -host a ./m : -n 3 -host a ./w", "--host=a:1,a:1,a:1,a:1 --ntasks=1 ./m : --ntasks=3 ./w"),
        ("mpirun -N 2 --mca btl self ./a", "--tasks-per-node=2 --cpu-bind=cores:or-none --env=OMPI_MCA_btl=self ./a"),
        ("mpiexec -l -N 2 ./a", "--label --ntasks=2 ./a"),
        ("mpiexec -N 2 ./a", "--ntasks=2 ./a"),
        ("mpiexec -n 4 -N 2 ./a", "--tasks-per-node=2 --distribution=plane=2 --ntasks=4 ./a"),
        ("mpirun -N 2 ./a", "--tasks-per-node=2 --cpu-bind=cores:or-none ./a"),
        ("mpirun.hydra -n 4 ./a", "--ntasks=4 ./a"),
        (
            "prterun --pset ocean -n 1 ./a",
            "--tasks-per=1:core --universe-size=slots --cpu-bind=cores:or-none --ntasks=1 --pset-literal=ocean ./a",
        ),
        ("mpirun --map-by ppr:2:node --bind-to core ./a", "--tasks-per-node=2 --cpu-bind=cores ./a"),
        ("mpirun --map-by node -bind-to none ./a", "--distribution=cyclic --tasks-per=1:core --cpu-bind=none ./a"),
        ("mpiexec -bind-to user:0+2,1+3 ./a", "--cpu-bind=map:0+2,1+3 ./a"),
        ("mpiexec -bind-to core:2 -map-by socket ./a", "--cpu-bind=cores:cores=2:over=sockets:overcommit ./a"),
        ("mpiexec -bind-to hwthread:2 ./a", "--cpu-bind=threads:cpus=2:overcommit ./a"),
        ("mpiexec -bind-to numa ./a", "--cpu-bind=numa ./a"),
        ("mpirun --map-by socket:PE=4 ./a", "--cpu-bind=cores:cores=4:over=sockets ./a"),
        ("mpirun --map-by core:PE=2,OVERSUBSCRIBE ./a", "--cpu-bind=cores:cores=2:or-none ./a"),
        ("mpirun --map-by ppr:2:node:PE=4 --bind-to core ./a", "--tasks-per-node=2 --cpu-bind=cores:cores=4 ./a"),
        ("mpirun --map-by l3cache --bind-to hwthread ./a", "--tasks-per=1:core --cpu-bind=threads:over=l3caches ./a"),
        ("mpirun --map-by gpu --bind-to core ./a", "--tasks-per=1:core --cpu-bind=cores:over=gpus ./a"),
        ("mpirun --map-by socket ./a", "--tasks-per=1:core --cpu-bind=sockets ./a"),
        ("mpirun -H a --map-by core -np 2 ./a", "--host=a:1 --universe-size=slots --cpu-bind=cores --ntasks=2 ./a"),
        ("mpiexec -hosts a -map-by socket ./a", "--nodelist=a --distribution=cyclic ./a"),
        ("mpirun --map-by ppr:2:socket ./a", "--tasks-per=2:socket --cpu-bind=numa:cores=1:or-none ./a"),
        ("mpirun --map-by ppr:1:numa:PE=4 ./a", "--tasks-per=1:numa --cpu-bind=cores:cores=4 ./a"),
        ("mpirun -npersocket 2 ./a", "--tasks-per=2:socket --cpu-bind=numa:cores=1:or-none ./a"),
        (
            "mpirun --map-by node --rank-by slot ./a",
            "--distribution=cyclic --rank-by=slot --tasks-per=1:core --cpu-bind=numa:over=numa:or-none ./a",
        ),
        ("mpirun --map-by numa --rank-by fill ./a", "--rank-by=fill --tasks-per=1:core --cpu-bind=numa ./a"),
        ("mpirun --rankfile r -np 2 ./a", "--rankfile=r --universe-size=slots --ntasks=2 ./a"),
        ("mpirun --map-by rankfile:file=r ./a", "--rankfile=r ./a"),
        ("mpirun --map-by seq -H a:2,b,a ./a", "--host=a:1,b:1,a:1 --cpu-bind=numa:over=numa:or-none ./a"),
        ("mpirun --map-by pe-list=0,2-3:ordered ./a", "--cpu-bind=core-map:0,2-3 ./a"),
        ("mpirun --cpu-list 0,2 ./a", "--cpu-bind=core-map:0+2 ./a"),
        ("mpirun --cpu-list 0,2 --bind-to cpu-list:ordered ./a", "--cpu-bind=core-map:0,2 ./a"),
        ("mpirun -cpus-per-rank 2 ./a", "--cpu-bind=cores:cores=2:over=numa ./a"),
        ("mpiexec -genv A 1 -env B=2 ./a : -n 2 ./b", "--env=A=1 --env=B=2 ./a : --env=A=1 --ntasks=2 ./b"),
        ("mpirun -x A=1 ./a : ./b", "--cpu-bind=numa:over=numa:or-none --env=A=1 ./a : --env=A=1 ./b"),
        ("mpiexec -genvnone -env A 1 ./a", "--export=NONE --env=A=1 ./a"),
        ("mpiexec -wdir /tmp -n 1 ./a : -wdir /usr ./b", "--ntasks=1 --chdir=/tmp ./a : --chdir=/usr ./b"),
        ("mpirun --allow-run-as-root --oversubscribe -np 2 ./a", "--universe-size=slots --ntasks=2 ./a"),
        (
            "mpirun --tag-output --timestamp-output ./a",
            "--label --timestamp --tasks-per=1:core --cpu-bind=numa:over=numa:or-none ./a",
        ),
        (
            "mpirun --mca plm rsh --mca pml ob1 ./a",
            "--tasks-per=1:core --cpu-bind=numa:over=numa:or-none --env=OMPI_MCA_pml=ob1 ./a",
        ),
        (
            "mpirun --pmixmca gds hash --prtemca ras ^slurm ./a",
            "--tasks-per=1:core --cpu-bind=numa:over=numa:or-none --env=PMIX_MCA_gds=hash ./a",
        ),
        ("mpiexec -outfile-pattern o.%r -errfile-pattern e.%r ./a", "--output=o.%r --error=e.%r ./a"),
        (
            "mpirun --report-bindings --display map ./a",
            "--show-map --tasks-per=1:core --cpu-bind=numa:over=numa:or-none ./a",
        ),
        (
            "mpirun --timeout 60 --stdin all ./a",
            "--timeout=60 --stdin=all --tasks-per=1:core --cpu-bind=numa:over=numa:or-none ./a",
        ),
        ("mpiexec -usize 8 -disable-auto-cleanup ./a", "--universe-size=8 --kill-on-bad-exit=0 ./a"),
        (
            "mpirun --with-ft ulfm ./a",
            "--kill-on-bad-exit=recover --tasks-per=1:core --cpu-bind=numa:over=numa:or-none --env=OMPI_MCA_mpi_ft_enable=1 ./a",
        ),
        ("mpirun --with-ft no ./a", "--tasks-per=1:core --cpu-bind=numa:over=numa:or-none ./a"),
        (
            "mpirun --preload-binary -np 1 ./a : --preload-binary -np 2 ./b",
            "--bcast --tasks-per=1:core --universe-size=slots --cpu-bind=numa:over=numa:or-none --ntasks=1 ./a : --ntasks=2 ./b",
        ),
        (
            "mpirun --preload-files a,b --preload-files-dest-dir /tmp ./a",
            "--preload-files=a,b --preload-dest-dir=/tmp --tasks-per=1:core --cpu-bind=numa:over=numa:or-none ./a",
        ),
        ("mpiexec -usize SYSTEM -bootstrap ssh -iface eth0 ./a", "--universe-size=slots ./a"),
        ("mpirun -- -odd name", "--tasks-per=1:core --cpu-bind=numa:over=numa:or-none -- -odd name"),
    ] {
        // A line with `--display map` is translated, but not parsed by `lattice launch`.
        match line.contains("--display map") {
            true => assert_eq!(read(line).unwrap().0, expected),
            false => means(line, expected),
        }
    }
}
