"""Stateless loads for TRex v3 (STL): UDP of 64 bytes, SYN flood, IMIX, IPv6.

    start -f stl.py -p 0 -m 1mpps -t load=udp,flows=1000000

NOT RUN HERE: the development machine has no NIC that TRex supports. The API is used as
documented in the TRex stateless manual, v3. Without TRex, `python3 stl.py` prints the
numbers as JSON. README.md describes how to run it against a gateway.

Sizes are of the frame on the wire with its check sequence, as in RFC 2544; the NIC adds
its four bytes. The headers of IPv6 and UDP already need 66 bytes, so udp6 has 78.
"""

import json

FCS = 4
PORTS = 50000  # source ports of one client address: 10000 to 59999
LOADS = {
    "udp": {"protocol": "udp", "family": 4, "port": 5000, "sizes": [[64, 1]]},
    "syn": {"protocol": "syn", "family": 4, "port": 80, "sizes": [[64, 1]]},
    "imix": {"protocol": "udp", "family": 4, "port": 5000, "sizes": [[64, 7], [594, 4], [1518, 1]]},
    "udp6": {"protocol": "udp", "family": 6, "port": 5000, "sizes": [[78, 1]]},
}
CLIENTS = {4: "10.81.0.1", 6: "fd00:81::1"}
VIPS = {4: "10.83.0.1", 6: "fd00:83::1"}


def frame(load, size, vip):
    """A frame of the given size, without check sequence, from the first client to the VIP."""
    from trex.stl import api

    ip = api.IP(src=CLIENTS[4], dst=vip) if load["family"] == 4 else api.IPv6(src=CLIENTS[6], dst=vip)
    if load["protocol"] == "syn":
        l4 = api.TCP(sport=10000, dport=load["port"], flags="S")
    else:
        l4 = api.UDP(sport=10000, dport=load["port"])
    base = api.Ether() / ip / l4
    return base / (b"x" * max(0, size - FCS - len(base)))


def vary(load, flows):
    """Instructions that give each packet the next flow: ports first, then addresses."""
    from trex.stl import api

    v4 = load["family"] == 4
    l3, l4 = ("IP" if v4 else "IPv6"), ("TCP" if load["protocol"] == "syn" else "UDP")
    addresses = max(1, (flows + PORTS - 1) // PORTS)
    # Port and address are incremented together, so the number of flows is the least common
    # multiple of their counts; the loop makes these coprime.
    while gcd(addresses, PORTS) != 1 and addresses > 1:
        addresses += 1
    ports = PORTS if flows > PORTS else flows
    first = 0x0A510001 if v4 else 1
    vm = [
        api.STLVmFlowVar(name="port", min_value=10000, max_value=10000 + ports - 1, size=2, op="inc"),
        api.STLVmFlowVar(name="address", min_value=first, max_value=first + addresses - 1, size=4, op="inc"),
        api.STLVmWrFlowVar(fv_name="port", pkt_offset=l4 + ".sport"),
        api.STLVmWrFlowVar(fv_name="address", pkt_offset=l3 + ".src", offset_fixup=0 if v4 else 12),
        api.STLVmFixChecksumHw(
            l3_offset=l3, l4_offset=l4,
            l4_type=api.CTRexVmInsFixHwCs.L4_TYPE_TCP if l4 == "TCP" else api.CTRexVmInsFixHwCs.L4_TYPE_UDP),
    ]
    return api.STLScVmRaw(vm)


def gcd(a, b):
    while b:
        a, b = b, a % b
    return a


class Sluice:
    def get_streams(self, tunables=None, direction=0, **kwargs):
        from trex.stl import api

        load = LOADS[kwargs.get("load", "udp")]
        flows = int(kwargs.get("flows", 1000000))
        vip = kwargs.get("vip", VIPS[load["family"]])
        return [
            api.STLStream(
                packet=api.STLPktBuilder(pkt=frame(load, size, vip), vm=vary(load, flows)),
                mode=api.STLTXCont(pps=weight))  # start -m scales the sum
            for size, weight in load["sizes"]
        ]


def register():
    return Sluice()


if __name__ == "__main__":
    print(json.dumps(LOADS))
