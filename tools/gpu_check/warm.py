"""Keeps the driver initialised and NVIDIA's libraries in the page cache while checks start hundreds of processes.

A driver without a persistence daemon initialises the GPU for every process unless a context is open. On a cold machine
the first initialisation takes longer than the timeout of prun's device probe, so gpu-check waits for it here.
The program is a child of gpu-check and ends when the pipe to its standard input closes.
"""
import ctypes
import pathlib
import select
import subprocess
import sys
import threading

COLD_S = 60  # seconds that the first initialisation may take


def start(context):
    """Returns the process, once its contexts are open or have failed to open; None without a GPU."""
    if context.device != "cuda" or not context.gpus:
        return None
    folders = [folder for folder in context.environment.get("LD_LIBRARY_PATH", "").split(":") if "/nvidia/" in folder]
    process = subprocess.Popen([sys.executable, "-IS", __file__, str(context.gpus), *folders], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)
    select.select([process.stdout], [], [], COLD_S)  # a line, or its end
    return process


def stop(process):
    if process is not None:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()


def hold(gpus):
    """Retains the primary context of each GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    if driver.cuInit(0) != 0:
        return
    for index in range(gpus):
        kept = ctypes.c_void_p()
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(kept), ctypes.c_int(index))


def read(folders):
    for folder in folders:
        for path in pathlib.Path(folder).glob("*.so*"):
            with open(path, "rb", 0) as file:
                while file.read(1 << 24):
                    pass


def main():
    reader = threading.Thread(target=read, args=(sys.argv[2:],), daemon=True)
    reader.start()
    hold(int(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.buffer.read()  # until gpu-check closes the pipe, or ends


if __name__ == "__main__":
    main()
