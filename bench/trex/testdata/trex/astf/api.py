"""Stands in for TRex in tests: it takes the calls that the profiles make, and no others."""


class ASTFProgram:
    def __init__(self, stream=True):
        self.stream, self.commands = stream, []

    def send(self, data):
        assert self.stream
        self.commands.append(("send", len(data)))

    def send_msg(self, data):
        assert not self.stream
        self.commands.append(("send", 1))

    def recv(self, n, clear=False):
        assert self.stream
        self.commands.append(("recv", n))

    def recv_msg(self, n, clear=False):
        assert not self.stream
        self.commands.append(("recv", n))

    def delay(self, usec):
        self.commands.append(("delay", usec))

    def set_var(self, name, value):
        self.commands.append(("var", name, value))

    def set_label(self, name):
        assert name.endswith(":")
        self.commands.append(("label", name))

    def jmp_nz(self, name, label):
        self.commands.append(("jump", name, label))

    def set_keepalive_msg(self, msec):
        assert not self.stream and msec > 0

    def wait_for_peer_close(self):
        assert self.stream
        self.commands.append(("wait",))


class Call:
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)


class ASTFIPGenGlobal(Call):
    pass


class ASTFIPGenDist(Call):
    pass


class ASTFIPGen(Call):
    pass


class ASTFAssociationRule(Call):
    pass


class ASTFTCPClientTemplate(Call):
    pass


class ASTFTCPServerTemplate(Call):
    pass


class ASTFTemplate(Call):
    pass


class ASTFProfile(Call):
    pass


class ASTFGlobalInfo:
    def __init__(self):
        self.scheduler = Call()
