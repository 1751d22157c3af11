use Socket; use IO::Socket::INET;
my ($kind, $address, $begun) = @ARGV; $SIG{PIPE} = "IGNORE"; srand 7;
sub dial { my $socket = IO::Socket::INET->new(PeerAddr => $address, Timeout => 20) or die "$kind: $!"; $socket->autoflush(1); $socket }
sub begun { open(my $file, ">", $begun) or die }
sub noise { join "", map { chr int rand 256 } 1 .. 200 }
sub reset_by { setsockopt($_[0], SOL_SOCKET, SO_LINGER, pack("ii", 1, 0)); close $_[0] }
# Without a limit; true if the other end has had enough.
sub pour { my ($socket, $piece, $times) = @_; for (1 .. $times) { syswrite($socket, $piece) or return 1 } 0 }
if ($kind eq "rapid") { for (1 .. 10000) { close dial(); begun() if $_ == 1000 } }
if ($kind eq "resets") { for (1 .. 10000) { my $socket = dial(); syswrite $socket, noise(); reset_by($socket); begun() if $_ == 1000 } }
if ($kind eq "malformed") {
    for (1 .. 1000) { my $socket = dial(); for (1 .. 10) { syswrite($socket, noise() . "\n") or last } begun() if $_ == 100 }
}
if ($kind eq "endless") {
    begun(); my $closed = 0;
    for (1 .. 8) { my $socket = dial(); syswrite $socket, "cmd=initack pmiid="; $closed += pour($socket, "7" x (1 << 16), 1 << 11) }
    print "closed $closed of 8\n" if $closed != 8;
}
if ($kind eq "held") {
    my @held = map { my $socket = dial(); syswrite $socket, "cmd=ini"; $socket } 1 .. 900; begun();
    select undef, undef, undef, 0.05 while -e $begun;
}
