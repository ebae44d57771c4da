// Rates of counters between two answers.

// Rates keeps the counters of the answer before.
export class Rates {
  #before = new Map();
  #at = 0;
  #seconds = 0;

  // next begins an answer of a time in seconds.
  next(at) {
    this.#seconds = this.#at ? at - this.#at : 0;
    this.#at = at;
  }

  // of returns how much a counter grows per second; null in the first answer. A counter that was
  // not there, or that began again, began at 0.
  of(name, value) {
    const before = this.#before.get(name) ?? 0;
    this.#before.set(name, value);
    if (this.#seconds <= 0) {
      return null;
    }
    return (value >= before ? value - before : value) / this.#seconds;
  }
}
