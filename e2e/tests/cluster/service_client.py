"""Writes to the example store through an EndpointSlice, as a client outside of the group: service_client.py SLICE_PATH PORT OUT.

Follows the slice by a watch of the API (kubectl), and appends a line `SECONDS ADDRESS` to OUT for each acknowledged write.
Goes on until OUT.stop exists."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

CONNECT_SECONDS = 0.2
ANSWER_SECONDS = 0.5
PAUSE_SECONDS = 0.005

address = None


def follow(namespace, name):
    global address
    command = ["kubectl", "get", "endpointslices", "--namespace", namespace, "--field-selector", f"metadata.name={name}",
               "--watch", "--output", "json"]
    while True:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
            decoder, text = json.JSONDecoder(), ""
            while chunk := os.read(watch.stdout.fileno(), 65536):
                text += chunk.decode()
                while text := text.lstrip():
                    try:
                        slice_, end = decoder.raw_decode(text)
                    except ValueError:
                        break
                    text = text[end:]
                    endpoints = slice_.get("endpoints") or []
                    address = endpoints[0]["addresses"][0] if endpoints else None
        time.sleep(0.1)


def write_to(host, port, out):
    """Writes until an answer is not OK, or somebody else is primary."""
    with socket.create_connection((host, port), CONNECT_SECONDS) as server:
        server.settimeout(ANSWER_SECONDS)
        number = 0
        while address == host and not os.path.exists(out + ".stop"):
            number += 1
            server.sendall(f"SET key {number}\r\n".encode())
            answer = b""
            while not answer.endswith(b"\r\n"):
                more = server.recv(4096)
                if not more:
                    return
                answer += more
            if answer != b"+OK\r\n":
                return
            with open(out, "a", encoding="utf-8") as acks:
                acks.write(f"{time.time():.6f} {host}\n")
            time.sleep(PAUSE_SECONDS)


def main():
    namespace, name, port, out = sys.argv[1:]
    threading.Thread(target=follow, args=(namespace, name), daemon=True).start()
    while not os.path.exists(out + ".stop"):
        host = address
        try:
            if host:
                write_to(host, int(port), out)
        except OSError:
            pass
        time.sleep(PAUSE_SECONDS)
    os._exit(0)


main()
