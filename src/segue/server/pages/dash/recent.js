// What was seen lately, kept in this page: for small lines beside the figures.

const KEPT = 60;
const lately = new Map();

export function noteOverview(overview) {
  const seen = new Set();
  for (const row of overview.queues) {
    seen.add(row.name);
    const kept = lately.get(row.name) || [];
    if (row.out_per_second !== null || kept.length)
      lately.set(row.name, [...kept, row.out_per_second].slice(-KEPT));
  }
  for (const name of lately.keys()) if (!seen.has(name)) lately.delete(name);
}

export function recentOut(name) {
  return lately.get(name) || [];
}
