"""Sends a write through an EndpointSlice again and again, as a client outside of the group:
service_client.py NAMESPACE SLICE PORT OUT COMMAND.

Follows the slice by a watch of the API (kubectl), and appends a line `SECONDS ADDRESS SENT REPLY` to OUT for each write that was
acknowledged: SENT are all that were sent until then, by any connection. Continues until OUT.stop exists."""

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
sent = 0


def follow(namespace, name):
    global address
    command = ["kubectl", "get", "endpointslices", "--namespace", namespace, "--field-selector", f"metadata.name={name}",
               "--watch", "--output", "json"]
    while True:
        # It holds none of the caller's pipes open, and ends at its next line after this process.
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watch:
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


def write_to(host, port, out, command):
    """Writes until an answer is an error, or somebody else is primary."""
    global sent
    with socket.create_connection((host, port), CONNECT_SECONDS) as server:
        server.settimeout(ANSWER_SECONDS)
        while address == host and not os.path.exists(out + ".stop"):
            sent += 1
            server.sendall(f"{command}\r\n".encode())
            answer = b""
            while not answer.endswith(b"\r\n"):
                more = server.recv(4096)
                if not more:
                    return
                answer += more
            if answer[:1] not in (b"+", b":"):
                return
            reply = answer[1:].decode().strip()
            with open(out, "a", encoding="utf-8") as acks:
                acks.write(f"{time.time():.6f} {host} {sent} {reply}\n")
            time.sleep(PAUSE_SECONDS)


def main():
    namespace, name, port, out, command = sys.argv[1:]
    threading.Thread(target=follow, args=(namespace, name), daemon=True).start()
    while not os.path.exists(out + ".stop"):
        host = address
        try:
            if host:
                write_to(host, int(port), out, command)
        except OSError:
            pass
        time.sleep(PAUSE_SECONDS)
    os._exit(0)


main()
