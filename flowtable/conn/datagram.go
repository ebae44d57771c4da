package conn

// Questions of a UDP client without an answer are counted, because its source port must not go to
// another client while the backend may still answer. A client may ask twice before the first
// answer: a stub resolver sends its queries for A and AAAA records from one socket (glibc's
// resolver without "single-request"). The count is exact for protocols with one answer to each
// question (DNS, RFC 1035 section 4.2.1; SNMP, RFC 3417; RADIUS, RFC 2865 section 2; NTP). After
// CountedDatagrams datagrams a flow (QUIC, games, media) is no longer counted. Two answers to one
// of two questions count as the answers to both.

// Values of the field of Meta that counts questions without an answer (MetaQuestions).
const (
	uncounted    Meta = iota // more than two at once, or more than CountedDatagrams datagrams
	AllAnswered              // no question waits
	oneWaits                 // one question waits
	twoWait                  // two questions wait
	maxQuestions = twoWait
)

// CountedDatagrams is how many datagrams of a flow are counted. Each of them writes the flow's
// Meta, and so does not take the plain path; later datagrams write it once a second.
const CountedDatagrams = 15

// datagram is the state machine of all protocols except TCP and SCTP. One packet and its reply
// prove nothing: the client's address may be forged. A client that sends again has received the
// reply; a forger must spend more than one packet on each flow.
var datagram = [NumStates][2]move{
	UDPNew:     {move(UDPNew) | refresh, move(UDPReplied)},
	UDPReplied: {move(UDPAssured), move(UDPReplied) | refresh},
	UDPAssured: {move(UDPAssured) | refresh, move(UDPAssured) | refresh},
	ICMPEcho:   {move(ICMPEcho) | refresh, move(ICMPEcho) | refresh},
}

// Questions returns the count of questions without an answer, or uncounted.
func (m Meta) Questions() Meta { return m & MetaQuestions >> MetaQuestionsShift }

// observeDatagram is Observe for all protocols except TCP and SCTP. later: the packet is a
// fragment, and not the first one of its datagram.
func (m Meta) observeDatagram(from Side, later bool, now Ticks) Meta {
	mv := datagram[m.State()][from&1]
	if !m.State().UDP() || m.Questions() == uncounted {
		return m.take(mv, from, now)
	}
	if m.State() == UDPAssured && now.Since(m.Seen()) >= RefreshTicks && m&MetaCountedUsed != MetaCountedUsed {
		m += 1 << MetaCountedUsedShift
	}
	m = m.WithState(State(mv & 15)).At(now)
	if later {
		return m
	}
	questions, datagrams := m.Questions(), m&MetaDatagrams>>MetaUsedShift
	switch {
	case from == ReplySide:
		questions = max(questions-1, AllAnswered)
	case datagrams > 0: // the first one is counted when the flow is made
		questions++
	}
	if datagrams++; datagrams > CountedDatagrams || questions > maxQuestions {
		return m.uncount()
	}
	return m&^(MetaQuestions|MetaDatagrams) | questions<<MetaQuestionsShift | datagrams<<MetaUsedShift
}

// uncount returns m without the counts of datagrams and questions.
func (m Meta) uncount() Meta {
	used := m & MetaCountedUsed >> MetaCountedUsedShift << MetaUsedShift
	return m&^(MetaQuestions|MetaUsed) | used
}

// UsedSeconds returns the number of seconds in which an assured UDP flow had packets, up to 256, or
// up to 16 while its datagrams are counted.
func (m Meta) UsedSeconds() int32 {
	if m&MetaQuestions != 0 {
		return 1 + int32(m&MetaCountedUsed>>MetaCountedUsedShift)
	}
	return 1 + int32(m&MetaUsed>>MetaUsedShift)
}
