// Requests to the server of the page.

// ask returns the answer to a request: its value, its time in seconds since 1970, and for how many
// milliseconds the gateway worked on it.
export async function ask(path, query, signal) {
  let response;
  try {
    response = await fetch('api/' + path + (query ? '?' + new URLSearchParams(query) : ''), {signal});
  } catch (error) {
    if (signal?.aborted) {
      throw error;
    }
    throw new Error('sluice ui does not answer: it has ended, or the ssh or port-forward to it has');
  }
  if (response.status === 404 || response.status === 403) {
    throw new Error((await response.text()).trim());
  }
  const value = await response.json();
  if (!response.ok) {
    throw new Error(value.error);
  }
  return {value, at: Number(response.headers.get('Sluice-Time')), took: Number(response.headers.get('Sluice-Took'))};
}

// askAll asks for several paths at once: {name: [path, query]}. The result has the values by name,
// the time of the last one, and the sum of the gateway's work.
export async function askAll(paths, signal) {
  const names = Object.keys(paths);
  const answers = await Promise.all(names.map((name) => ask(paths[name][0], paths[name][1], signal)));
  const all = {
    at: Math.max(...answers.map((a) => a.at)),
    took: answers.reduce((sum, a) => sum + a.took, 0),
  };
  names.forEach((name, i) => {
    all[name] = answers[i].value;
  });
  return all;
}
