// The choice of a version in the sidebar, and a notice on each page that is not of the newest release.
//
// `versions.json` lies beside the folders of all versions; scripts/site_versions.py writes it when the site is
// published. Where there is none, as in a site that is read from disk, nothing is shown.
(async () => {
  if (location.protocol === "file:") return;
  const root = new URL(document.documentElement.dataset.content_root, location.href);
  const all = new URL("../", root);
  const here = root.pathname.split("/").at(-2);
  const response = await fetch(new URL("versions.json", all)).catch(() => null);
  if (!response?.ok) return;
  const { newest, versions } = await response.json();
  if (!versions.includes(here)) return;

  // The same page of another version, or the first one if that version has no such page.
  const open = async (version) => {
    const first = new URL(`${version}/`, all);
    const same = new URL(location.href.slice(root.href.length), first);
    const found = await fetch(same, { method: "HEAD" }).then((answer) => answer.ok, () => false);
    location.href = found ? same : first;
  };

  const choice = document.querySelector(".sidebar-versions");
  const list = choice.querySelector("select");
  for (const version of versions) {
    const words = version === newest ? `${version} (newest release)` : version;
    list.add(new Option(words, version, version === here, version === here));
  }
  list.addEventListener("change", () => open(list.value));
  choice.hidden = false;

  if (!newest || here === newest) return;
  const notice = document.createElement("div");
  notice.className = "admonition warning versions-notice";
  notice.setAttribute("role", "note");
  const words = document.createElement("p");
  const about = here === "latest" ? "the next release, which is not published yet" : `version ${here}`;
  const link = document.createElement("a");
  link.href = new URL(`${newest}/`, all);
  link.textContent = `Read about version ${newest}, the newest release`;
  link.addEventListener("click", (event) => {
    event.preventDefault();
    open(newest);
  });
  words.append(`This page is about ${about}. `, link, ".");
  notice.append(words);
  document.querySelector("article").prepend(notice);
})();
