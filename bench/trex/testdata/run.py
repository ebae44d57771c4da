"""Runs the profiles on what stands in for TRex, and prints what they would do."""

import json
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path[:0] = [here, os.path.dirname(here)]

import astf  # noqa: E402
import stl  # noqa: E402


def play(commands):
    """What a program sends and receives, its delays, and whether it waits for the end."""
    total, variables, labels, at = {"send": 0, "recv": 0, "delay": 0, "wait": 0}, {}, {}, 0
    while at < len(commands):
        c = commands[at]
        if c[0] in ("send", "recv", "delay"):
            total[c[0]] += c[1]
        elif c[0] == "wait":
            total["wait"] += 1
        elif c[0] == "var":
            variables[c[1]] = c[2]
        elif c[0] == "label":
            labels[c[1]] = at
        elif c[0] == "jump":
            variables[c[1]] -= 1
            if variables[c[1]]:
                at = labels[c[2]]
        at += 1
    return total


def stateful(name):
    p = astf.register().get_profile([], profile=name)
    return {
        "ramp": p.default_c_glob_info.scheduler.rampup_sec,
        "clients": p.default_ip_gen.dist_client.ip_range,
        "servers": p.default_ip_gen.dist_server.ip_range,
        "templates": [{
            "port": t.client_template.port, "listens": t.server_template.assoc.port, "cps": t.client_template.cps,
            "client": play(t.client_template.program.commands), "server": play(t.server_template.program.commands),
        } for t in p.templates],
    }


def stateless(name):
    return [{
        "frame": len(s.packet.pkt), "layers": s.packet.pkt.names, "weight": s.mode.pps,
        "variables": {v.name: v.max_value - v.min_value + 1 for v in s.packet.vm.args[0] if hasattr(v, "max_value")},
    } for s in stl.register().get_streams(load=name, flows=1000000)]


json.dump({
    "astf": {name: stateful(name) for name in astf.PROFILES},
    "stl": {name: stateless(name) for name in stl.LOADS},
}, sys.stdout)
