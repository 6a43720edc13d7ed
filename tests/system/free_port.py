"""free_port.py - a port for programs under test, as tests/port.c takes one."""
import os
import socket


def take_port():
    """A port of 127.0.0.1 and the socket that holds it until closed: no other test has it, and the kernel assigns it to no one."""
    for i in range(12000):
        port, hold = 20000 + (os.getpid() + i) * 47 % 12000, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            hold.bind(f"\0test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
            return port, hold
        except OSError:
            hold.close()
    raise RuntimeError("no port from 20000 to 31999 is free")
