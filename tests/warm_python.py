"""A Python that has imported its libraries already and forks for every process asked for: 50 ms instead of seconds.

Nothing of mrfquant is imported before the fork: what a command imports is part of what tests check.
Started with the number of a socket, on which a request comes as a byte and three files: a connection that brings what
to run and takes the process's number and exit status, the process's standard output and its standard error.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
import types

import gin  # noqa: F401
import numba
import pytest  # noqa: F401
import scipy.sparse.csgraph  # noqa: F401
import torch._dynamo  # noqa: F401 - by the first step of an optimizer


def wait_for_request(requests):
    """Returns in the process that is to run, with what to run; its parent, a process too, tells how it ends."""
    while True:
        _, files, _, _ = socket.recv_fds(requests, 1, 3)
        if not files:
            os._exit(0)  # nobody will ask again
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    number, out, err = files
    connection = socket.socket(fileno=number)
    asked = json.loads(connection.makefile().readline())
    if child := os.fork():
        connection.sendall(f"{child}\n".encode())
        os.close(out)  # the reader of a pipe sees its end when the child has ended
        os.close(err)
        connection.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
        os._exit(0)
    connection.close()
    for target, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(file, target)
        os.close(file)
    return asked


def run(words):
    """As `python WORDS` does."""
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        sys.path[0] = ""
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = words
        sys.path[0] = os.path.dirname(words[0])
        runpy.run_path(words[0], run_name="__main__")


def exit_status(words):
    """Of a process that runs them; what ends it early is told as Python does."""
    try:
        run(words)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def leave(status):
    """As the interpreter does, but without taking every module apart: a second with those that are loaded."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    numba.njit(lambda: 0)()  # loads what every first kernel of a process does
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asked = wait_for_request(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    leave(exit_status(asked["words"]))
