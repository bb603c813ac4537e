// Banners that a reader has put away stay away, in this browser.
for (const banner of document.querySelectorAll("[data-dismiss]")) {
  const button = banner.querySelector("button[type=button]");
  banner.hidden = localStorage.getItem(banner.dataset.dismiss) !== null;
  button.hidden = false;
  button.addEventListener("click", () => {
    localStorage.setItem(banner.dataset.dismiss, "1");
    banner.hidden = true;
  });
}
