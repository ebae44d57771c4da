package flowtable

import "time"

// If a UDP source port goes to another client while the backend may still answer the first one, the
// answer reaches the wrong client. So a flow holds its port as long as an answer may arrive:
//
//	a question has no answer yet    UDPUnreplied after the last datagram
//	as many answers as questions    quietAfterAnswer after the last datagram
//	the datagrams are not counted   UDPUnreplied after the last datagram
//
// When ports run short, a new flow takes a port only from a flow that no longer waits for an
// answer. The port of a flow that ends earlier rests (resting, maxRest).
//
// Questions are counted because a client may ask twice before the first answer: a stub resolver
// sends its queries for A and AAAA records from one socket (glibc's resolver without
// "single-request").
// The count is exact for protocols with one answer to each question (DNS, RFC 1035 section 4.2.1;
// SNMP, RFC 3417; RADIUS, RFC 2865 section 2; NTP). After countedDatagrams datagrams a flow (QUIC,
// games, media) is no longer counted. Two answers to one of two questions count as the answers to
// both.

// Values of the field of meta that counts questions without an answer (metaQuestions).
const (
	uncounted    meta = iota // more than two at once, or more than countedDatagrams datagrams
	allAnswered              // no question waits
	oneWaits                 // one question waits
	twoWait                  // two questions wait
	maxQuestions = twoWait
)

// countedDatagrams is how many datagrams of a flow are counted. Each of them writes the flow's
// meta, and so does not take the plain path; later datagrams write it once a second.
const countedDatagrams = 15

// quietAfterAnswer is how long a flow keeps its port after all its questions are answered. The
// other datagrams of an answer, and duplicates, follow the first one at once.
const quietAfterAnswer = ticks(time.Second/tick) + 1

// maxRest bounds how long the port of a UDP flow rests if the flow was ended to make room in the
// table, by an operator or with its endpoint. While a flood fills the table, resting must have room
// for all flows that end in that time. If the bound were longer, no client would get a port.
const maxRest = int32(10 * time.Second / tick)

// datagram is the state machine of all protocols except TCP and SCTP. One packet and its reply
// prove nothing: the client's address may be forged. A client that sends again has received the
// reply; a forger must spend more than one packet on each flow.
var datagram = [NumStates][2]move{
	UDPNew:     {move(UDPNew) | refresh, move(UDPReplied)},
	UDPReplied: {move(UDPAssured), move(UDPReplied) | refresh},
	UDPAssured: {move(UDPAssured) | refresh, move(UDPAssured) | refresh},
	ICMPEcho:   {move(ICMPEcho) | refresh, move(ICMPEcho) | refresh},
}

// questions returns the count of questions without an answer, or uncounted.
func (m meta) questions() meta { return m & metaQuestions >> metaQuestionsShift }

// udp reports whether a flow is in a state of UDP.
func (s State) udp() bool { return s >= UDPNew && s <= UDPAssured }

// born returns the first meta of a new flow.
func born(proto uint8, now ticks) meta {
	m := makeMeta(initial(proto), proto, now)
	if m.state().udp() {
		m |= oneWaits << metaQuestionsShift
	}
	return m
}

// observeDatagram is observe for all protocols except TCP and SCTP. later: the packet is a
// fragment, and not the first one of its datagram.
func (m meta) observeDatagram(from Side, later bool, now ticks) meta {
	mv := datagram[m.state()][from&1]
	if !m.state().udp() || m.questions() == uncounted {
		return m.take(mv, from, now)
	}
	if m.state() == UDPAssured && now.since(m.seen()) >= refreshTicks && m&metaCountedUsed != metaCountedUsed {
		m += 1 << metaCountedUsedShift
	}
	m = m.withState(State(mv & 15)).at(now)
	if later {
		return m
	}
	questions, datagrams := m.questions(), m&metaDatagrams>>metaUsedShift
	switch {
	case from == ReplySide:
		questions = max(questions-1, allAnswered)
	case datagrams > 0: // the first one is counted when the flow is made
		questions++
	}
	if datagrams++; datagrams > countedDatagrams || questions > maxQuestions {
		return m.uncount()
	}
	return m&^(metaQuestions|metaDatagrams) | questions<<metaQuestionsShift | datagrams<<metaUsedShift
}

// uncount returns m without the counts of datagrams and questions.
func (m meta) uncount() meta {
	used := m & metaCountedUsed >> metaCountedUsedShift << metaUsedShift
	return m&^(metaQuestions|metaUsed) | used
}

// answersUntil returns the time up to which the backend of a UDP flow may still answer its client.
// For other protocols it returns the flow's last-seen time.
func (t *Table) answersUntil(m meta) ticks {
	switch {
	case !m.state().udp():
		return m.seen()
	case m.questions() == allAnswered && m.state() != UDPNew:
		return m.seen() + quietAfterAnswer
	}
	return m.seen() + ticks(t.unanswered)
}

// restsUntil returns the time up to which the port of a flow that ends now rests.
func (t *Table) restsUntil(m meta, now ticks) ticks {
	switch until := t.answersUntil(m); {
	case m.backendInTimeWait():
		return m.seen() + ticks(t.lifetimes[makeMeta(TimeWaitBackend, 0, 0).life()])
	case until.since(now) > maxRest:
		return now + ticks(maxRest)
	default:
		return until
	}
}

// backendInTimeWait reports whether the backend may hold a connection in TIME_WAIT. It may also do
// so if its last ACK was not seen, and if a late copy of data revoked a FIN (restored): an end in
// TIME_WAIT ignores such data.
func (m meta) backendInTimeWait() bool {
	return m.state() == TimeWaitBackend || m.state() == LastAckBackend || m.bothFins()
}

// awaitsAnswer reports whether the backend of a flow may still answer its client.
func (t *Table) awaitsAnswer(m meta, now ticks) bool { return t.answersUntil(m).since(now) > 0 }
