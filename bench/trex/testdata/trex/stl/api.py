"""Stands in for TRex and Scapy in tests: it takes the calls that the profiles make."""


class Layer:
    size = 0

    def __init__(self, **fields):
        self.fields, self.total, self.names = fields, self.size, [type(self).__name__]

    def __truediv__(self, other):
        p = Layer()
        p.fields = self.fields
        if isinstance(other, bytes):
            p.total, p.names = self.total + len(other), self.names
        else:
            p.total, p.names = self.total + other.total, self.names + other.names
        return p

    def __len__(self):
        return self.total


class Ether(Layer):
    size = 14


class IP(Layer):
    size = 20


class IPv6(Layer):
    size = 40


class TCP(Layer):
    size = 20


class UDP(Layer):
    size = 8


class Call:
    def __init__(self, *args, **kwargs):
        self.args = args
        self.__dict__.update(kwargs)


class STLVmFlowVar(Call):
    pass


class STLVmWrFlowVar(Call):
    pass


class STLVmFixChecksumHw(Call):
    pass


class STLScVmRaw(Call):
    pass


class STLPktBuilder(Call):
    pass


class STLStream(Call):
    pass


class STLTXCont(Call):
    pass


class CTRexVmInsFixHwCs:
    L4_TYPE_UDP, L4_TYPE_TCP = 11, 13
