"""Stateful loads for TRex v3 (ASTF), with the numbers of bench/profiles/*.yaml.

    start -f astf.py -t profile=http,vip=10.83.0.1

NOT RUN HERE: the development machine has no NIC that TRex supports. The API is used as
documented in the TRex ASTF manual, v3.
Without TRex, `python3 astf.py` prints the numbers as JSON; a test compares them with
bench/profiles. README.md describes how to run it against a gateway.
"""

import json

# Sizes in bytes, times in milliseconds. The sender of a step is the client or the server.


def client(size=None, text=None, hex=None, after=0, count=1):
    return step("client", size, text, hex, after, count)


def server(size=None, text=None, hex=None, after=0, count=1):
    return step("server", size, text, hex, after, count)


def step(sender, size, text, hex, after, count):
    return {"from": sender, "size": size, "text": text, "hex": hex, "after": after, "count": count}


def repeat(times, *steps):
    return {"repeat": times, "steps": list(steps)}


def template(name, protocol, port, *steps, close="", timeout=0, retries=0):
    return {
        "name": name, "protocol": protocol, "port": port, "steps": list(steps),
        "close": close, "timeout": timeout, "retries": retries,
    }


PAGE = template(
    "page", "tcp", 80,
    client(text="GET /index.html HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: sluice-bench\r\n"
                "Accept: text/html\r\nConnection: close\r\n\r\n"),
    server(1200),
    close="server")
OBJECT = template("object", "tcp", 8080, client(250), server(16384), close="client")
KEEPALIVE = template(
    "keepalive", "tcp", 8081,
    client(250), server(4096), client(250, after=50), server(4096),
    close="client")
ANSWER = template("answer", "tcp", 80, client(200), server(10240), close="client", timeout=5000)
QUERY = template(
    "query", "udp", 53,
    # Identification 0x2a2a, recursion desired; A of www.shop.example, class IN.
    client(hex="2a2a 0100 0001 0000 0000 0000 03777777 0473686f70 076578616d706c65 00 0001 0001"),
    server(120),
    timeout=1000, retries=2)
FEED = template(
    "feed", "tcp", 9000,
    client(200), repeat(20, server(2000, after=500), client(16)),
    close="client", timeout=30000)
UPLOAD = template(
    "upload", "tcp", 9001,
    repeat(10, client(8000, after=1000), server(32)),
    close="client", timeout=30000)
TRANSFER = template(
    "transfer", "udp", 443,
    client(1200), server(1200, count=3), client(80, count=2),
    repeat(4, client(300, after=20), server(1200, count=16), client(50, count=8), server(50)),
    timeout=1000, retries=3)


def profile(seconds, cps, concurrency, ramp, *shares):
    return {
        "duration": 1000 * seconds, "connectionsPerSecond": cps, "concurrency": concurrency, "ramp": 1000 * ramp,
        "clients": "10.81.0.1-10.81.0.16", "servers": "10.82.0.1-10.82.0.8", "vip": "10.83.0.1",
        "templates": [dict(t, share=share) for t, share in shares],
    }


PROFILES = {
    "http": profile(20, 10000, 20000, 3, (PAGE, 70), (OBJECT, 20), (KEEPALIVE, 10)),
    "answers": profile(2, 1000, 20000, 1, (ANSWER, 100)),
    "dns": profile(20, 20000, 20000, 3, (QUERY, 100)),
    "streams": profile(30, 500, 10000, 5, (FEED, 80), (UPLOAD, 20)),
    "quic": profile(20, 500, 5000, 3, (TRANSFER, 100)),
    "mix": profile(
        30, 5000, 30000, 5,
        (PAGE, 35), (OBJECT, 10), (KEEPALIVE, 5), (QUERY, 40), (FEED, 3), (UPLOAD, 1), (TRANSFER, 6)),
}


def payload(s):
    if s["text"] is not None:
        return s["text"].encode()
    if s["hex"] is not None:
        return bytes.fromhex(s["hex"].replace(" ", ""))
    return b"x" * s["size"]


class Side:
    """One side's program. Only the sender of a step delays."""

    def __init__(self, name, t, program):
        self.name, self.program, self.udp = name, program, t["protocol"] == "udp"
        self.variables = 0
        if self.udp:
            self.program.set_keepalive_msg(t["timeout"])

    def steps(self, steps):
        for s in steps:
            if "repeat" in s:
                self.loop(s["repeat"], lambda inner=s["steps"]: self.steps(inner))
            elif s["count"] > 1:
                self.loop(s["count"], lambda one=s: self.one(one))
            else:
                self.one(s)

    def loop(self, times, body):
        self.variables += 1
        variable = "v%d" % self.variables
        self.program.set_var(variable, times)
        self.program.set_label(variable + ":")
        body()
        self.program.jmp_nz(variable, variable + ":")

    def one(self, s):
        if s["from"] == self.name:
            if s["after"]:
                self.program.delay(1000 * s["after"])  # microseconds
            (self.program.send_msg if self.udp else self.program.send)(payload(s))
        elif self.udp:
            self.program.recv_msg(1, True)
        else:
            self.program.recv(len(payload(s)), True)  # cleared, so that each iteration counts from zero


def programs(t, make):
    """The two programs of a template. The side that closes ends; the other waits for the close."""
    both = []
    for name in ("client", "server"):
        side = Side(name, t, make(stream=t["protocol"] == "tcp"))
        side.steps(t["steps"])
        if t["protocol"] == "tcp" and t["close"] != name:
            side.program.wait_for_peer_close()
        both.append(side.program)
    return both


class Sluice:
    def get_profile(self, tunables, **kwargs):
        from trex.astf import api

        p = PROFILES[kwargs.get("profile", "http")]
        vip = kwargs.get("vip", p["vip"])
        ips = api.ASTFIPGen(
            glob=api.ASTFIPGenGlobal(ip_offset="0.0.1.0"),
            dist_client=api.ASTFIPGenDist(ip_range=p["clients"].split("-"), distribution="seq"),
            dist_server=api.ASTFIPGenDist(ip_range=[vip, vip], distribution="seq"),
        )
        info = api.ASTFGlobalInfo()
        info.scheduler.rampup_sec = p["ramp"] // 1000
        templates = []
        for t in p["templates"]:
            at_client, at_server = programs(t, api.ASTFProgram)
            templates.append(api.ASTFTemplate(
                client_template=api.ASTFTCPClientTemplate(
                    program=at_client, ip_gen=ips, port=t["port"],
                    cps=p["connectionsPerSecond"] * t["share"] / 100),
                server_template=api.ASTFTCPServerTemplate(
                    program=at_server, assoc=api.ASTFAssociationRule(port=t["port"])),
            ))
        return api.ASTFProfile(default_ip_gen=ips, default_c_glob_info=info, templates=templates)


def register():
    return Sluice()


if __name__ == "__main__":
    print(json.dumps(PROFILES))
